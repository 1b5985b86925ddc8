"""The compared program: a script's first training step, and the settings in which it runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from abele import passes
from abele.capture import origins
from abele.compilation import verdict
from abele.errors import DifferenceError
from abele.fit.command import running
from abele.program import Program, Role
from abele.runtime.observers import Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step import batching
from abele.targets import ENVIRONMENT, NAMES, Lowering, Target, get_target
from abele.targets.interpreter import Types

_TYPES = {
    "float32": None,  # as it was captured
    "reference": None,
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting(Types):
    """A target, lowering or dtype in which a program runs.

    Attributes:
        name: name on the command line.
        dtype: type that replaces float32 in an interpreted program; None to keep float32.
        target: target that compiles the program; None if it is interpreted.
        lowering: lowering of the target; None if the target chooses.
    """

    name: str
    target: Target | None = None
    lowering: Lowering | None = None

    @property
    def tolerance(self) -> float:
        """Allowed error of a tensor in this setting, relative to the tensor's norm."""
        return verdict.tolerance(self.dtype or torch.float32)


TRUTH = Setting(name="float64", dtype=torch.float64)
PLAIN = Setting(name="reference")


def setting(name: str) -> Setting:
    """Return the target, lowering or dtype with a name, such as ``cpu:emitted``.

    Args:
        name: ``reference`` (synonym: ``float32``), ``cpu`` or ``cuda``, a lowering such as
            ``cpu:emitted``, or a type: ``half``, ``bfloat16``, ``float64``.

    Raises:
        DifferenceError: the name is unknown, or the target cannot compile here.
    """
    if name in _TYPES:
        return Setting(name=name, dtype=_TYPES[name])
    target_name, _, lowering_name = name.partition(":")
    compiled = [each for each in NAMES if each not in ("reference", "null")]
    if target_name not in compiled:
        ways = ", ".join((*_TYPES, *compiled))
        raise DifferenceError(
            f"{name!r} is no way to run a program. Choose two of {ways}, or a lowering such as "
            "cpu:emitted."
        )
    target = get_target(target_name)
    problem = target.cannot_compile()
    if problem is not None:
        raise DifferenceError(f"{name!r} cannot be used here: {problem}")
    lowering = None
    if lowering_name:
        known = {each.name: each for each in target.lowerings}
        if lowering_name not in known:
            raise DifferenceError(
                f"Target {target_name!r} has no lowering {lowering_name!r}, but {', '.join(known)}."
            )
        lowering = known[lowering_name]
    return Setting(name=name, target=target, lowering=lowering)


# -- script ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A captured program with the inputs of one run.

    Attributes:
        program: the program before all passes.
        arguments: one tensor per input slot; runs use copies.
        random_state: state of torch's random number generator.
    """

    program: Program
    arguments: tuple[torch.Tensor, ...]
    random_state: torch.Tensor

    def fresh(self) -> list[torch.Tensor]:
        """Return copies of the program's arguments."""
        return [each.clone() for each in self.arguments]


class _Taken(BaseException):
    """An exception that ends a script before its first training step; not an ``Exception``."""


def of_script(script: Path, arguments: Sequence[str] = ()) -> Subject:
    """Run a script up to its first training step, and return that step's program and inputs.

    Args:
        script: path of the script; runs as ``__main__``.
        arguments: arguments of the script.

    Returns:
        The program and its first micro-batch. If the script does not train, its first call.

    Raises:
        DifferenceError: the script runs no model.
        FitError: there is no such script.
        BaseException: the script raised an error.
    """
    taker = _Taker()
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = "reference"  # takes no compiler, and the engine's own random numbers
    try:
        with origins.wanted(), passes.watched(taker.note), of_new_sessions(taker.observer):
            running(script, list(arguments))
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
    """Captures the program and inputs of a script's first training step."""

    def __init__(self) -> None:
        self.subject: Subject | None = None
        self._captured: dict[str, Program] = {}

    def note(self, program: Program) -> None:
        """Record the version of a program with the fewest passes applied."""
        known = self._captured.get(program.name)
        if known is None or len(program.history) <= len(known.history):
            self._captured[program.name] = program

    def observer(self, session: Session) -> Observer | None:
        """Return an observer for a training session, or for the first inference session."""
        if not session.config.training and self.subject is not None:
            return None
        captured = self._captured
        self._captured = {}
        return _First(self, session, captured)


class _First(Observer):
    """Observer that captures the first call of a session."""

    def __init__(self, taker: _Taker, session: Session, captured: dict[str, Program]):
        self._taker, self._session, self._captured = taker, session, captured

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Capture the program, the first micro-batch and the state before it."""
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
