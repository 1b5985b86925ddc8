"""Comparison of compiled programs with interpreted ones before their results are used.

Programs that do not agree are compiled again without vectorizers, then by other lowerings. If
nothing agrees they are interpreted, which is an error where the target was insisted on.

Programs that are compiled while interpreted ones run take over between two calls: all of a session
together, and none of its tensors moves. That something went wrong costs one warning; steps then
stay interpreted, as they do where that is faster.

Processes that share updates vote in each of them (``exchange.Votes``): for it, when compiled
programs are there and have been compared. After the update in which the last one did so, all
change. One that cannot keeps the others from it too, because weights that are updated by other
programs in one process would no longer be the same everywhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from abele.compilation.compiling import blamed, lowered_by, return_memory
from abele.compilation.executable import (
    Announce,
    ChosenLowering,
    Executable,
    Failure,
    Later,
    Proving,
    TakeOverWarning,
)
from abele.compilation.verdict import ComparisonWarning, Verdict, record, recorded
from abele.errors import AbeleError, CompilerError, StoppedError
from abele.program import Program
from abele.runtime.agreement import Comparison, Trial
from abele.runtime.device_state import DeviceState
from abele.targets.base import Compiled, Lowering
from abele.targets.candidates import considered
from abele.warn import warn_user

Inputs = Callable[[], Mapping[str, torch.Tensor]]
#: A reduction over processes: takes this process's problem, returns the first of any process.
Agree = Callable[[str | None], str | None]
_NO_BATCH = "no batch: "  # sent by a process whose interpreter cannot compute its micro-batch
_Remedy = tuple[str, Callable[[], Executable]]
_Code = tuple[Program, Compiled]  # a program after the passes of its lowering, and its code


class Change:
    """A pending switch of a session's programs between two calls.

    Attributes:
        over: nothing will change any more.
    """

    over = False

    def due(self, inputs: Inputs) -> Executable | None:
        """Return the programs to use from the next call on; None to keep the present programs.

        Args:
            inputs: returns the call's first micro-batch by slot name.

        Raises:
            CompilerError: the target was insisted on, and no compiled programs can be used.
        """
        raise NotImplementedError

    def awaited(self) -> Executable:
        """Return the programs that are worth storing in a file, after waiting for a compiler."""
        raise NotImplementedError

    def announce(self) -> None:
        """Tell the user about the switch of programs."""

    def count(self) -> None:
        """Count the updates of the call that now begins."""

    def close(self) -> None:
        """Stop waiting for compiled programs."""


class FirstUse(Change):
    """The comparison of a session's compiled programs before the first call."""

    def __init__(self, made: Executable, proving: Proving, state: DeviceState):
        self._made, self._proving, self._state = made, proving, state
        self._refused: CompilerError | None = None

    def due(self, inputs: Inputs) -> Executable:
        """Return compiled programs that agree with interpreted ones, else interpreted ones.

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
        del trial
        return_memory()
        return made

    def awaited(self) -> Executable:
        """Return the session's programs as they are, compared or not."""
        return self._made

    def _agreeing(self, trial: Trial) -> Executable:
        running, announce = self._proving.running, self._proving.announce
        chosen = agreeing(trial, _interpreted(self._made), self._made, self._agree, announce)
        if isinstance(chosen, Executable):
            return kept(chosen, self._proving)
        if running.required is not None:
            raise CompilerError(
                f"Target {running.required!r} was asked for, but its programs do not compute on "
                f"this machine what interpreted ones do: {chosen}. Nothing was computed with them. "
                "Let abele choose the target to run interpreted programs, or use another compiler "
                "(CXX)."
            )
        other = _interpreted(self._made)
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
    """Return an executable whose named program agrees with the interpreted one.

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
    if recorded(one.machine()) is not None:
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
    trial: Trial,
    oracle: Executable,
    made: Executable,
    agree: Agree = lambda problem: problem,
    announce: Announce = lambda text: None,
) -> Executable | str:
    """Return the first compiled programs that agree with interpreted ones, or why none do.

    Args:
        trial: what is compared.
        oracle: the interpreted programs.
        made: the programs compiled by the first choice of lowerings.
        agree: a reduction by which processes that share updates choose alike.
        announce: called with a sentence before anything is compiled again, which may take minutes.

    Returns:
        Programs with their verdict; in words, the problem of each choice.
    """
    problems = list[str]()
    for remedy, make in itertools.chain([("", lambda: made)], _remedies(made)):
        candidate: Executable | None = None
        if remedy:
            announce(f"results differ from the interpreter's; programs are {remedy} (please wait)")
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
    """Return an executable with the verdict that it agrees with interpreted programs."""
    verdict = Verdict(
        machine=made.machine(),
        compared=comparison.compared,
        errors=comparison.errors,
        judged_by=comparison.judged_by,
        remedy=remedy,
    )
    return dataclasses.replace(made, verdict=verdict)


def kept(chosen: Executable, proving: Proving) -> Executable:
    """Cache an executable that agrees with the interpreter, with its verdict."""
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


# -- other code for programs that do not agree -------------------------------------------------


def _remedies(made: Executable) -> Iterator[_Remedy]:
    """Yield other ways to compile an executable's programs, the most similar one first.

    Each is a description and a function, which raises ``CompilerError`` if it cannot be done.
    """
    lowerings = {program.name: made.lowering(program.name) for program in made.common}
    if any(each.compiles for each in lowerings.values()):
        yield "compiled again without vectorizers", lambda: _conservative(made, lowerings)
    for lowering in made.target.lowerings:
        if lowering.trusted or lowering in lowerings.values():
            continue
        name = lowering.name
        yield f"lowered by {name!r} instead", lambda by=lowering: _by(made, by)


def _interpreted(made: Executable) -> Executable:
    """Return the executable with its programs interpreted, on the same device."""
    by = ChosenLowering(name=made.target.lowerings[-1].name, reason="compiled code was refused")
    runs = {program.name: made.target.interpreted(program) for program in made.common}
    return _with(
        made,
        {name: (program, Compiled(run)) for name, (program, run) in runs.items()},
        dict.fromkeys(runs, by),
    )


def _conservative(made: Executable, lowerings: dict[str, Lowering]) -> Executable:
    code = dict[str, _Code]()
    for program in made.common:
        lowering, lowered = lowerings[program.name], made.lowered(program.name)
        with blamed(program, lowering.name):
            again = lowering.compile_conservatively(lowered)
        code[program.name] = lowered, again or made.compiled[program.name]
    if all(each is made.compiled[name] for name, (_, each) in code.items()):
        raise CompilerError("there are no other flags to compile with")
    chosen = {
        name: ChosenLowering(name=each.name, reason="compiled without vectorizers")
        for name, each in lowerings.items()
    }
    return _with(made, code, chosen)


def _by(made: Executable, lowering: Lowering) -> Executable:
    code = dict[str, _Code]()
    for program in made.common:
        problem = lowering.why_not(considered(made.target, program))
        if problem is not None:
            raise CompilerError(f"{lowering.name!r} cannot run program {program.name!r}: {problem}")
        with blamed(program, lowering.name):
            lowered = lowered_by(made.target, program, lowering.name)
            code[program.name] = lowered, lowering.compile(lowered)
    chosen = ChosenLowering(name=lowering.name, reason="code of the first choice was refused")
    return _with(made, code, dict.fromkeys(code, chosen))


def _with(
    made: Executable, code: Mapping[str, _Code], chosen: Mapping[str, ChosenLowering]
) -> Executable:
    """Return an executable with other code and the same key, which is that of the programs."""
    names = {name: each.name for name, each in chosen.items()}
    return dataclasses.replace(
        made,
        key_parts={**made.key_parts, "lowerings": names},
        programs=tuple(code[program.name][0] for program in made.common),
        compiled={name: compiled for name, (_, compiled) in code.items()},
        chosen=dict(chosen),
        later=None,
        planned=frozenset(),
        verdict=None,
    )


_LOG_LINES = 5


@dataclasses.dataclass(frozen=True)
class Slower:
    """The outcome that compiled programs are no faster; ``problem`` has the times."""

    problem: str


Outcome = Executable | Failure | Slower


class TakeOver(Change):
    """The switch of a session from interpreted to compiled programs.

    Attributes:
        updates: number of updates of the calls that have begun.
        news: text of the announcement.
        clock: returns the time in seconds, to compare run times.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, interpreted: Executable, later: Later, state: DeviceState):
        self._interpreted, self._later, self._state = interpreted, later, state
        self.updates, self.over, self.news = 0, False, ""
        self._outcome: Outcome | None = None
        self._missed: Failure | None = None

    def due(self, inputs: Inputs) -> Executable | None:
        """Return compiled programs if ready, in agreement with interpreted ones and no slower."""
        if self._missed is not None:
            raise self._insisted(self._missed)
        if self.over and self._later.running.interpreted:
            return None  # the warning that said so was made an error, which ended the call before
        before = self.updates
        if self._outcome is None:
            self._outcome = self._compared(self._arrived(before), inputs)
            if self._outcome is not None:
                return_memory()
            self._vote()
        outcome = self._decided()
        if isinstance(outcome, Failure):
            self._refuse(outcome)
        elif isinstance(outcome, Slower):
            self._stay(outcome.problem)
        elif outcome is not None:
            self._later.running.interpreted, self._later.running.since = False, before
            self._later.running.lowerings.update(outcome.chosen)
            self.over = True
            unit = "update" if self._state.config.training else "batch"
            where = f"at {unit} {before}{_measured(outcome)}"
            self.news = f"compiled programs took over {where}"
            return outcome
        return None

    def awaited(self) -> Executable:
        """Wait for the compiled programs; return the interpreted ones if they fail.

        Raises:
            CompilerError: they fail and were insisted on.
        """
        made = self._later.wait()
        if isinstance(made, Executable):
            return made
        if self._later.running.required is not None:
            raise self._insisted(made)
        return self._interpreted

    def _arrived(self, updates: int) -> Executable | Failure | None:
        at = self._later.at
        if at is None:
            return self._later.look()
        if self._state.exchange is not None:  # what is to happen there is decided one call before
            updates += self._state.config.device_iterations
        return self._later.wait() if updates >= at else None

    def _compared(self, made: Executable | Failure | None, inputs: Inputs) -> Outcome | None:
        """Return the compiled programs or their remedy, compared with the interpreted ones."""
        if not isinstance(made, Executable):
            return made
        try:
            trial = Trial(self._state, inputs(), self.clock)
            chosen = self._agreeing(trial, made)
            slower = None if isinstance(chosen, str) else self._slower(trial, chosen)
        except Warning:  # the user has made an error of it
            raise
        except Exception:  # noqa: BLE001 - the call will come to the same error and raise it
            return None
        if isinstance(chosen, str):
            return Failure(f"{chosen}; results would not be those of plain PyTorch")
        if slower is not None:
            return Slower(f"compiled ones are slower here ({slower})")
        return chosen

    def _agreeing(self, trial: Trial, made: Executable) -> Executable | str:
        """Return compiled programs that agree with interpreted ones, or why none do."""
        running, proving = self._later.running, self._interpreted.proving
        if made.verdict is not None and made.is_proven():
            running.check = made.verdict.sentence()
            trial.clock(self._interpreted, made)
            return made
        if self._state.exchange is not None:  # other code in one process would be other weights
            noted = made.has_kernels_of_here()
            comparison = compared(trial, self._interpreted, made, noted=noted)
            chosen = comparison.problem or proven(made, comparison)
        else:
            chosen = agreeing(trial, self._interpreted, made, announce=self._later.announce)
        if isinstance(chosen, Executable):
            source = None if proving is None else proving.source
            return kept(chosen, Proving(running=running, source=source))
        return chosen

    def _slower(self, trial: Trial, made: Executable) -> str | None:
        """Explain why compiled programs would not be faster; None if they may be."""
        later = self._later
        if later.at is not None or later.running.required is not None:
            return None  # what runs is asked for, so the clock must not decide it
        if self._state.exchange is not None:  # nor must it in each process by itself
            return None
        return trial.slower(self._interpreted, made)

    def _vote(self) -> None:
        exchange, mine = self._state.exchange, self._outcome
        if exchange is not None and mine is not None:
            exchange.vote(mine.problem if isinstance(mine, Failure) else None)

    def _decided(self) -> Outcome | None:
        """Return the switch of programs that all processes agree on; None while undecided."""
        exchange, mine = self._state.exchange, self._outcome
        if exchange is None:
            return mine
        if exchange.votes.outcome is False:
            log = mine.log if isinstance(mine, Failure) else ""
            return Failure(exchange.objections(), log)
        return mine if exchange.votes.outcome else None

    def _insisted(self, failure: Failure) -> CompilerError:
        return CompilerError(
            f"Target {self._later.running.required!r} was asked for, but no compiled programs take "
            f"over: {failure.problem}. State is as after the last update. Set ABELE_START=wait to "
            "compile first and see the compiler's whole output, or let abele choose the target.",
            log=failure.log,
        )

    def _stay(self, problem: str) -> None:
        self.over = True
        self._later.running.problem = problem
        self._later.close()
        self.news = f"programs stay interpreted: {problem}"

    def _refuse(self, failure: Failure) -> None:
        problem, log = failure.problem, failure.log
        self._stay(problem)
        if self._later.running.required is not None:
            self._missed, self.over = failure, False  # each further call is to fail
            raise self._insisted(failure)
        end = "\n".join(["", *log.strip().splitlines()[-_LOG_LINES:]]) if log.strip() else ""
        warn_user(
            f"Compiled programs do not take over: {problem}. Steps stay interpreted, which gives "
            f"the same numbers and is slower. Set ABELE_START=wait to compile first and see the "
            f"compiler's whole output.{end}",
            TakeOverWarning,
        )

    def count(self) -> None:
        """Count the updates of the call that now begins; skipped if the user interrupts it."""
        self.updates += self._state.config.device_iterations

    def announce(self) -> None:
        """Announce whether compiled programs replaced interpreted ones."""
        self._later.announce(self.news)

    def close(self) -> None:
        """Stop compiling the programs; interpreted ones stay in use."""
        self.over = True
        self._later.close()
        if self._later.running.interpreted:
            self._later.running.problem = "the session was closed before compiled ones were ready"


def _measured(made: Executable) -> str:
    """Name the lowerings that timing has chosen, so that a run can be repeated with them."""
    names = sorted({each.name for each in made.chosen.values()})
    return f" ({' and '.join(names)}, measured)" if names else ""


def pending_change(executable: Executable, state: DeviceState) -> Change | None:
    """Return the switch of programs that awaits an executable's calls, or None.

    Args:
        executable: the programs that run first.
        state: of the caller, which shares its updates with the processes of its exchange.
    """
    if executable.later is not None:
        return TakeOver(executable, executable.later, state)
    unproven = executable.proving is not None and not executable.is_proven()
    if state.exchange is not None:  # all compare where one has to
        mine = "unproven" if unproven else ""
        unproven = any(state.exchange.collective.gather("unproven programs", mine))
    proving = executable.proving
    return FirstUse(executable, proving, state) if unproven and proving is not None else None
