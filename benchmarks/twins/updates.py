"""SGD with momentum, Adam and AdamW as torch defines them, on dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]
State = dict[str, Any]
Update = Callable[[Params, Params, State], tuple[Params, State]]


def of(name: str, settings: Mapping[str, float]) -> tuple[Callable[[Params], State], Update]:
    """Return what makes an optimizer's first state, and its update.

    Args:
        name: of the class in ``torch.optim``: SGD, Adam or AdamW.
        settings: its arguments: ``lr``, and ``momentum`` or ``weight_decay``.

    Raises:
        KeyError: another name.
    """
    start = {"SGD": _zeros("momentum"), "Adam": _zeros("mean", "square")}
    start["AdamW"] = start["Adam"]
    if name == "SGD":
        return start[name], _sgd(settings["lr"], settings["momentum"])
    decay = settings.get("weight_decay", 0.01) if name == "AdamW" else 0.0
    return start[name], _adam(settings["lr"], decay)


def _zeros(*names: str) -> Callable[[Params], State]:
    def start(params: Params) -> State:
        zeros = {name: jax.tree.map(jnp.zeros_like, params) for name in names}
        return {"steps": jnp.zeros(()), **zeros}

    return start


def _sgd(rate: float, momentum: float) -> Update:
    def update(params: Params, gradients: Params, state: State) -> tuple[Params, State]:
        sums = {k: momentum * state["momentum"][k] + gradients[k] for k in params}
        changed = {k: params[k] - rate * sums[k] for k in params}
        return changed, {"steps": state["steps"] + 1, "momentum": sums}

    return update


def _adam(rate: float, decay: float) -> Update:
    first, second, eps = 0.9, 0.999, 1e-8

    def update(params: Params, gradients: Params, state: State) -> tuple[Params, State]:
        steps = state["steps"] + 1
        mean = {k: first * state["mean"][k] + (1 - first) * gradients[k] for k in params}
        square = {k: second * state["square"][k] + (1 - second) * gradients[k] ** 2 for k in params}
        size, root = rate / (1 - first**steps), jnp.sqrt(1 - second**steps)
        changed = {
            k: params[k] * (1 - rate * decay) - size * mean[k] / (jnp.sqrt(square[k]) / root + eps)
            for k in params
        }
        return changed, {"steps": steps, "mean": mean, "square": square}

    return update
