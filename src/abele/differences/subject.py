"""A program and the inputs of one run of it: the first training step of a script."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from abele import passes
from abele.capture import origins
from abele.errors import DifferenceError
from abele.fit.command import running
from abele.program import Program, Role
from abele.runtime.observers import Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step import batching
from abele.targets import ENVIRONMENT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What is run in two ways.

    Attributes:
        program: as it was captured.
        arguments: one tensor per input slot; copies of them are used.
        random_state: of torch's generator.
    """

    program: Program
    arguments: tuple[torch.Tensor, ...]
    random_state: torch.Tensor

    def fresh(self) -> list[torch.Tensor]:
        """Copies of the arguments."""
        return [each.clone() for each in self.arguments]


class _Taken(BaseException):
    """The first training step is about to run; no ``except Exception`` of a script catches it."""


def of_script(script: Path, arguments: Sequence[str] = ()) -> Subject:
    """Run a script up to its first training step, which is not run.

    Args:
        script: runs as ``__main__``, on the host.
        arguments: of the script.

    Returns:
        The first micro-batch of that step; of a script that does not train, of its first call.

    Raises:
        DifferenceError: the script runs no model.
        FitError: there is no such script.
        BaseException: of the script.
    """
    taker = _Taker()
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = "reference"  # takes no compiler, and the engine's own random numbers
    try:
        with origins.wanted(), passes.watched(taker.note), of_new_sessions(taker.observer):
            running(script, list(arguments), quiet=True)
    except _Taken:
        pass
    finally:
        os.environ.pop(ENVIRONMENT)
        os.environ |= {} if before is None else {ENVIRONMENT: before}
    if taker.subject is None:
        raise DifferenceError(
            f"{script} ended without running a model, so there is nothing to compare. Give it the "
            f"arguments with which it does, behind --: abele diff {script} A B -- ARG ..."
        )
    return taker.subject


class _Taker:
    """Takes the first step of a script."""

    def __init__(self) -> None:
        self.subject: Subject | None = None
        self._captured: dict[str, Program] = {}

    def note(self, program: Program) -> None:
        """Note a program before its passes: nobody else has so few stamps."""
        known = self._captured.get(program.name)
        if known is None or len(program.history) <= len(known.history):
            self._captured[program.name] = program

    def observer(self, session: Session) -> Observer | None:
        """Observe training, and the first model that does not train."""
        if not session.config.training and self.subject is not None:
            return None
        captured = self._captured
        self._captured = {}
        return _First(self, session, captured)


class _First(Observer):
    """Takes the first call of a session."""

    def __init__(self, taker: _Taker, session: Session, captured: dict[str, Program]):
        self._taker, self._session, self._captured = taker, session, captured

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Take the first micro-batch with the state before it."""
        session = self._session
        if not session.config.training and self._taker.subject is not None:
            return
        name = next(each for each in ("forward", "step", "accumulate") if each in self._captured)
        program = self._captured[name]
        arguments = session.arguments(program, 0)
        rows = iter(inputs)
        for index, slot in enumerate(program.inputs):
            if slot.role is Role.INPUT:
                arguments[index] = _micro_batch(next(rows), session)
        self._taker.subject = Subject(
            program=program,
            arguments=tuple(each.detach().cpu().clone() for each in arguments),
            random_state=(session.random_state or [torch.get_rng_state()])[0],
        )
        if session.config.training:
            raise _Taken


def _micro_batch(tensor: torch.Tensor, session: Session) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    return tensor.narrow(0, 0, batching.micro_batch_size(tensor.shape[0], session.config))
