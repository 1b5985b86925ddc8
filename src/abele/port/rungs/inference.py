"""Compares inference models of a port with the plain models.

It runs in the process of the port, on the host. After each of the first calls of a model that does
not train, forward is run as it is, with the same inputs and the mode that the model has then.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence

import torch

from abele.capture import Call
from abele.port.rungs import process
from abele.port.rungs.frames import variable
from abele.runtime.clock import CallRecord
from abele.runtime.observers import Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step.config import StepConfig
from abele.warn import user_line

_CALLS = 20
_SAME = "same"


class Looker:
    """Compares calls of inference models with plain ones."""

    def __init__(self) -> None:
        self.calls = 0
        self._captured: tuple[Call, torch.nn.Module, list[bool], str] | None = None

    def look(
        self, call: Call, module: torch.nn.Module, inputs: Sequence[torch.Tensor], step: StepConfig
    ) -> None:
        """Note a model that does not train."""
        del inputs
        modes = [each.training for each in module.modules()]
        self._captured = None if step.training else (call, module, modes, user_line())

    def observer(self, session: Session) -> Observer | None:
        """Observe a model that does not train."""
        captured, self._captured = self._captured, None
        if session.config.training or captured is None:
            return None
        return _Calls(self, *captured)

    def finish(self, **facts: str) -> None:
        """Tell what was seen, and end the script.

        Raises:
            Seen: always.
        """
        process.tell(calls=self.calls, **facts)
        raise process.Seen


class _Calls(Observer):
    """Compares each call of a session."""

    def __init__(
        self, looker: Looker, call: Call, module: torch.nn.Module, modes: list[bool], line: str
    ):
        self._looker, self._call, self._module = looker, call, module
        self._modes, self._first = modes, line
        self._outputs: list[torch.Tensor] = []
        self._expected: list[torch.Tensor] = []

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Compute what the plain model does, from the same random numbers."""
        state = torch.get_rng_state()
        # What is captured may be a copy of the user's model, with the same modules inside.
        self._module.training = _users(self._module)[1].training
        with torch.no_grad():
            self._expected = self._call([each.clone() for each in inputs])
        torch.set_rng_state(state)

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note what the program has returned."""
        self._outputs = [each.detach().clone() for each in outputs]

    def on_call_end(self, call: CallRecord) -> None:
        """Compare them."""
        if call.error is not None:
            return
        self._looker.calls += 1
        if not _same_in_order(self._outputs, self._expected):
            kept = self._modes == [each.training for each in self._module.modules()]
            facts = {"first": self._first, "line": user_line()}
            mode = "" if kept else f"{_users(self._module)[0]}.{_mode(self._module)}"
            self._looker.finish(result="other", mode=mode, **facts)
        if self._looker.calls >= _CALLS:
            self._looker.finish(result=_SAME)


def _same_in_order(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Whether a program has returned what was expected; constants are no outputs of programs."""
    others = iter(expected)
    return all(any(_equal(each, other) for other in others) for each in outputs)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same bit for bit, where NaN is NaN."""
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _mode(module: torch.nn.Module) -> str:
    return "train()" if module.training else "eval()"


def _users(module: torch.nn.Module) -> tuple[str, torch.nn.Module]:
    """What the user's code calls a module where it is under way, and the module there."""
    return variable(lambda each: _alike(each, module)) or ("model", module)


def _alike(value: object, module: torch.nn.Module) -> bool:
    """Whether something is a model of the class of a module, with its parameters."""
    if not isinstance(value, torch.nn.Module) or type(value) is not type(module):
        return False
    mine, others = [*value.parameters()], [*module.parameters()]
    return len(mine) == len(others) and all(map(operator.is_, mine, others))


def main(script: str, *arguments: str) -> None:
    """Run a port up to some calls of its inference models."""
    looker = Looker()
    if process.runs_to_its_end(script, arguments, looker.look, of_new_sessions(looker.observer)):
        process.tell(calls=looker.calls, result=_SAME)


if __name__ == "__main__":
    main(*sys.argv[1:])
