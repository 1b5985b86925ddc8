"""Finds what the host has changed of a training model that its program does not know.

It runs in the process of the port, on the host. Before each of the first calls of the first
training model, values of its optimizer, modes of its modules and weights are compared with those of
the program. What has changed unsaid is why the port trains otherwise than its original.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import torch

from abele.capture import Call
from abele.port.rungs import process
from abele.port.rungs.frames import variable
from abele.runtime.observers import Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step.config import StepConfig
from abele.trace.module_state import ModuleState
from abele.warn import user_line

_CALLS = 8  # more than the updates that the ladder compares
_BETAS = {"beta1": 0, "beta2": 1}


class Looker:
    """Looks at the calls of the first training model."""

    def __init__(self) -> None:
        self._captured: torch.nn.Module | None = None
        self._seen = False

    def look(
        self, call: Call, module: torch.nn.Module, inputs: Sequence[torch.Tensor], step: StepConfig
    ) -> None:
        """Note a model that trains."""
        del call, inputs
        self._captured = module if step.training else None

    def observer(self, session: Session) -> Observer | None:
        """Observe the first model that trains."""
        module, self._captured = self._captured, None
        if module is None or self._seen or not session.config.training:
            return None
        self._seen = True
        return _Calls(session, module)


class _Calls(Observer):
    """Compares what the host has with what the program has, before each call."""

    def __init__(self, session: Session, module: torch.nn.Module):
        self._session, self._module = session, module
        self._modes = _modes(module)
        self._followed: set[str] | None = None
        self._count = 0

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Tell the first change of which the program does not know."""
        del inputs
        self._count += 1
        for facts in (self._value(), self._mode(), self._weight()):
            if facts and self._count > 1:
                wrapper = variable(_is_wrapper)
                model = "training_model" if wrapper is None else wrapper[0]
                process.tell(line=user_line(), model=model, **facts)
                raise process.Seen
        if self._count >= _CALLS:
            process.tell(changed="")
            raise process.Seen

    def _value(self) -> dict[str, Any]:
        """A value of the optimizer that the program has otherwise."""
        optimizers = [each for each in _optimizers() if _updates(each, self._module)]
        present = [_values(each) for each in optimizers]
        program = {name: each.item() for name, each in self._session.hyper.items()}
        if self._followed is None:  # values that mean the same on both sides
            self._followed = {
                name
                for name, value in program.items()
                if any(each.get(name) == value for each in present)
            }
        for name in sorted(self._followed):
            others = [each[name] for each in present if name in each]
            if others and program[name] not in others:
                of = variable(lambda each: any(each is other for other in optimizers))
                facts = {"host": others[0], "program": program[name]}
                optimizer = "optimizer" if of is None else of[0]
                name = name.rpartition(".")[2]
                return {"changed": "value", "name": name, "optimizer": optimizer, **facts}
        return {}

    def _mode(self) -> dict[str, Any]:
        """A module whose mode is not the one that the program was made in."""
        for name, training in _modes(self._module).items():
            if training != self._modes.get(name, training):
                mode = "training" if training else "evaluation"
                return {"changed": "mode", "name": name or "the model", "mode": mode}
        return {}

    def _weight(self) -> dict[str, Any]:
        """A parameter that the host has written, and the program has otherwise."""
        for name, each in ModuleState.of(self._module).params.items():
            kept = self._session.params.get(name)
            if kept is not None and not torch.equal(each.cpu(), kept.cpu()):
                return {"changed": "weight", "name": name}
        return {}


def _is_wrapper(value: object) -> bool:
    return hasattr(type(value), "setOptimizer")


def _modes(module: torch.nn.Module) -> dict[str, bool]:
    """Whether each module is in training mode, by its path."""
    untyped: Any = module
    return {name: each.training for name, each in untyped.named_modules()}


def _optimizers() -> list[torch.optim.Optimizer]:
    objects = gc.get_objects()
    return [each for each in objects if issubclass(type(each), torch.optim.Optimizer)]


def _updates(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> bool:
    parameters = {id(each) for each in module.parameters()}
    return any(
        id(each) in parameters for group in optimizer.param_groups for each in group["params"]
    )


def _values(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The numbers of an optimizer, named as programs name them."""
    values: dict[str, float] = {}
    for index, group in enumerate(optimizer.param_groups):
        numbers = {name: each for name, each in group.items() if isinstance(each, int | float)}
        if "betas" in group:
            numbers |= {name: group["betas"][place] for name, place in _BETAS.items()}
        values |= {f"group{index}.{name}": float(each) for name, each in numbers.items()}
    return values


def main(script: str, *arguments: str) -> None:
    """Run a port up to some calls of its first training model."""
    looker = Looker()
    if process.runs_to_its_end(script, arguments, looker.look, of_new_sessions(looker.observer)):
        process.tell(changed="")


if __name__ == "__main__":
    main(*sys.argv[1:])
