"""Time loops of recurrent layers (LSTM, GRU) as kernel calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from abele import _torch
from abele.ops import recurrent_loop
from abele.ops.recurrent_cells import CELLS
from abele.targets.cpu.emitted.calls import products
from abele.targets.translation.movement import arguments, turned
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

# The kernels' names, and their arguments in order after the description of the layer.
_KERNELS = {
    recurrent_loop.forward: (
        "recurrent",
        ("inputs", "weight", "bias", "h", "c", "states", "cells", "gates"),
    ),
    recurrent_loop.backward: (
        "recurrent_backward",
        (
            *("grad_states", "grad_h", "grad_c", "weight", "states", "cells", "gates"),
            *("of inputs", "of products", "of h", "of c"),
        ),
    ),
}


def loop(translator: Any, node: torch.fx.Node) -> Any:
    """Translate a recurrent layer's time loop: pack its weight, compute all steps in one call.

    Args:
        translator: of the program.
        node: its operator is one of ``HANDLERS``.
    """
    operator: Any = node.target
    forward = operator is recurrent_loop.forward
    names = [each.name for each in _torch.schema_of(operator).arguments]
    given: dict[str, Any] = dict(zip(names, arguments(node), strict=True))
    kind, weight = given["kind"], translator.places[given["weight"]]
    given["weight"] = products.packed_factor(translator, turned(weight) if forward else weight)
    made: list[torch.Tensor] = list(node.meta["val"])
    results = [translator.new(tuple(each.shape), each.dtype) for each in made]
    written = recurrent_loop.results(kind)
    if not forward:
        written = [f"of {name}" for name in recurrent_loop.gradients(kind)]
    kernel, order = _KERNELS[operator]
    reads = {n: _in_rows(translator, given[n]) for n in order if given.get(n) is not None}
    places = {name: f"{{{i}}}" for i, name in enumerate([*reads, *written])}
    pointers = ", ".join(places.get(name, "nullptr") for name in order)
    steps, batch, units = _sizes(made, forward=forward)
    settings = int(given["reverse"]), int(given.get("kept", True))
    described = ", ".join(map(str, (CELLS[kind].index, steps, batch, units, *settings)))
    threads = products.threads_for(steps * batch * weight.size)
    text = f"status |= abele_{kernel}(&AbeleRecurrent{{{{{described}}}}}, {pointers}, {threads})"
    translator.add(Call(list(reads.values()), results, text))
    return results


def _sizes(results: Sequence[torch.Tensor], *, forward: bool) -> tuple[int, int, int]:
    """Return the time steps, batch size and hidden units of a recurrent layer."""
    if forward:  # states before and after each step
        steps, batch, units = results[0].shape
        return steps - 1, batch, units
    batch, units = results[-1].shape  # the gradients of inputs come first, of one state last
    return results[0].shape[0], batch, units


def _in_rows(translator: Any, given: torch.fx.Node | Place) -> Place:
    if isinstance(given, Place):
        return given
    return translator.contiguous(translator.places[given])


HANDLERS = dict.fromkeys(_KERNELS, loop)
