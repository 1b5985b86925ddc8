"""Compiled programs are compared with interpreted ones before their first result is used.

Programs that do not agree are made again in other ways: without vectorizers, by another lowering.
If nothing agrees they are interpreted, which is an error where the target was insisted on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import torch

from abele.compile.executable import Executable
from abele.compile.remedies import interpreted, remedies
from abele.compile.verdict import (
    ComparisonWarning,
    Proving,
    Verdict,
    machine_of,
    record,
    recorded,
)
from abele.errors import AbeleError, CompilerError, StoppedError
from abele.program import Program
from abele.runtime.agreement import Comparison, Trial
from abele.runtime.device_state import DeviceState
from abele.warn import warn_user

Inputs = Callable[[], Mapping[str, torch.Tensor]]
#: Takes the problem of this process and returns the first problem of any process.
Agree = Callable[[str | None], str | None]
_NO_BATCH = "no batch: "  # a process says so where the interpreter cannot compute what it was given


class FirstUse:
    """The comparison of a session's compiled programs before the first call.

    Args:
        made: the programs.
        proving: who has to know of the verdict.
        state: of the session.

    Attributes:
        over: the comparison has been made.
    """

    def __init__(self, made: Executable, proving: Proving, state: DeviceState):
        self._made, self._proving, self._state = made, proving, state
        self._refused: CompilerError | None = None
        self.over = False

    def due(self, inputs: Inputs) -> Executable:
        """Return the programs to run from the call on that begins.

        Args:
            inputs: gives the call's first micro-batch by the name of slots.

        Raises:
            CompilerError: the target was insisted on, and no compiled programs agree.
            Exception: of the interpreted programs, which cannot compute this micro-batch.
        """
        if self._refused is not None:
            raise self._refused
        trial = Trial(self._state, inputs())
        try:
            made = self._agreeing(trial)
        except CompilerError as error:
            self._refused = error
            raise
        self.over = True
        return made

    def awaited(self) -> Executable:
        """Return the programs as they are, compared or not."""
        return self._made

    def announce(self) -> None:
        """Say nothing: ``due`` has warned of what there was."""

    def count(self) -> None:
        """Count nothing: the comparison does not depend on updates."""

    def close(self) -> None:
        """Stop nothing: a call after it still compares."""

    def _agreeing(self, trial: Trial) -> Executable:
        chosen = agreeing(trial, interpreted(self._made), self._made, self._agree)
        running = self._proving.running
        if isinstance(chosen, Executable):
            return kept(chosen, self._proving)
        if running.required is not None:
            raise CompilerError(
                f"Target {running.required!r} was asked for, but its programs do not compute on "
                f"this machine what interpreted ones do: {chosen}. Nothing was computed with them. "
                "Let abele choose the target to run interpreted programs, or use another compiler "
                "(CXX)."
            )
        other = interpreted(self._made)
        running.interpreted, running.problem = True, chosen
        running.lowerings.update(other.chosen)
        warn_user(
            f"Compiled programs do not agree with interpreted ones on this machine: {chosen}. "
            "Programs are interpreted, which gives the numbers of plain PyTorch and is slower. "
            "Another compiler may help: set CXX to its path.",
            ComparisonWarning,
        )
        return other

    def _agree(self, problem: str | None) -> str | None:
        exchange = self._state.exchange
        if exchange is None:
            return problem
        each = exchange.collective.gather("comparison of programs", problem or "")
        failed = next((text for text in each if text.startswith(_NO_BATCH)), None)
        if failed is not None and failed != problem:
            why = failed.removeprefix(_NO_BATCH)
            raise StoppedError(f"Another process cannot compute its first micro-batch: {why}")
        return next((text for text in each if text), None)


def first_use(
    made: Executable, name: str, state: DeviceState, inputs: Mapping[str, torch.Tensor]
) -> Executable:
    """Return an executable of which the program of that name agrees with the interpreted one.

    Args:
        made: programs that a caller runs one by one.
        name: of the program that is about to run for the first time.
        state: of the session.
        inputs: what the program takes, by the name of slots.

    Raises:
        CompilerError: the target was insisted on, and no compiled program agrees.
    """
    if made.proving is None:
        return made

    def only(programs: tuple[Program, ...]) -> tuple[Program, ...]:
        return tuple(each for each in programs if each.name == name)

    one = dataclasses.replace(
        made,
        programs=only(made.programs),
        common=only(made.common),
        compiled={name: made.compiled[name]},
    )
    if recorded(one) is not None:
        return made
    proving = dataclasses.replace(made.proving, source=None)  # a part is not worth keeping
    chosen = FirstUse(one, proving, state).due(lambda: inputs)
    if chosen.verdict is not None:
        record(chosen.verdict)
    return dataclasses.replace(
        made,
        programs=tuple(chosen.programs[0] if p.name == name else p for p in made.programs),
        compiled={**made.compiled, **chosen.compiled},
        chosen={**made.chosen, **chosen.chosen},
        planned=made.planned if chosen.planned else made.planned - {name},
    )


def agreeing(
    trial: Trial, oracle: Executable, made: Executable, agree: Agree = lambda problem: problem
) -> Executable | str:
    """Return the first programs that agree with interpreted ones, or why none do.

    Args:
        trial: what is compared.
        oracle: the interpreted programs.
        made: the compiled programs of the first choice.
        agree: makes all processes that share updates come to the same choice.

    Returns:
        Programs with their verdict; in words, the problem of each choice.
    """
    problems = list[str]()
    for remedy, make in itertools.chain([("", lambda: made)], remedies(made)):
        candidate: Executable | None = None
        try:
            candidate = make()
            noted = not remedy and candidate.has_kernels_of_here()
            comparison = compared(trial, oracle, candidate, noted=noted)
        except Exception as error:
            if candidate is not None:  # the batch cannot be computed, which no code would change
                agree(f"{_NO_BATCH}{error}")
                raise
            if not isinstance(error, AbeleError):
                raise
            comparison = Comparison(problem=str(error))
        problem = agree(comparison.problem)
        if problem is None and candidate is not None:
            if remedy:
                _warn_of_remedy(made, problems[0], remedy)
            return proven(candidate, comparison, remedy)
        problems.append(f"{remedy}: {problem}" if remedy else str(problem))
    return "; ".join(problems)


def compared(trial: Trial, oracle: Executable, made: Executable, *, noted: bool) -> Comparison:
    """Test the library kernels in compiled programs, then compare the programs.

    Args:
        trial: what is compared.
        oracle: the interpreted programs.
        made: the compiled programs.
        noted: see ``Compiled.kernel_problem``.

    Raises:
        Exception: of the interpreted programs, which cannot compute this micro-batch.
    """
    for name in sorted(made.compiled):
        problem = made.compiled[name].kernel_problem(noted=noted)
        if problem is not None:
            return Comparison(problem=problem)
    return trial.compare(oracle, made)


def proven(made: Executable, comparison: Comparison, remedy: str = "") -> Executable:
    """Return programs that agree with interpreted ones, with the verdict that says so."""
    verdict = Verdict(
        machine=machine_of(made),
        compared=comparison.compared,
        errors=comparison.errors,
        judged_by=comparison.judged_by,
        remedy=remedy,
    )
    return dataclasses.replace(made, verdict=verdict)


def kept(chosen: Executable, proving: Proving) -> Executable:
    """Record the verdict on programs that agree, and keep them with it for later processes."""
    assert chosen.verdict is not None
    proving.running.check = chosen.verdict.sentence()
    proving.running.lowerings.update(chosen.chosen)
    if proving.source is not None:
        proving.source.store(chosen)
    return chosen


def _warn_of_remedy(made: Executable, problem: str, remedy: str) -> None:
    lowerings = sorted({made.lowering(program.name).name for program in made.common})
    warn_user(
        f"Compiled code did not agree with the interpreter on this machine, so it was {remedy}: "
        f"{problem} (lowering {' and '.join(lowerings)}, toolchain "
        f"{made.target.toolchain() or 'unknown'}). Results agree now. Please report this, with the "
        "version of the C++ compiler.",
        ComparisonWarning,
    )
