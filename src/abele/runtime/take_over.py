"""The switch from interpreted to compiled programs, between two calls and after a comparison.

All programs of a session change together, and none of its tensors moves. That something went wrong
costs one warning; steps then stay interpreted, as they do where that is faster. Where compiled
programs were insisted on it is an error instead, of each further call.

Processes that share updates vote in each of them (``exchange.Votes``): for it, when compiled
programs are there and have been compared. After the update in which the last one did so, all
change. One that cannot keeps the others from it too, because weights that are updated by other
programs in one process would no longer be the same everywhere.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from abele.compile.executable import Executable, Failure, Later, Proving, TakeOverWarning
from abele.errors import CompilerError
from abele.runtime.agreement import Trial
from abele.runtime.device_state import DeviceState
from abele.runtime.proving import Change, Inputs, agreeing, compared, kept, proven
from abele.warn import warn_user

_LOG_LINES = 5


@dataclasses.dataclass(frozen=True)
class Slower:
    """Compiled programs are no faster; ``problem`` has the times."""

    problem: str


Outcome = Executable | Failure | Slower


class TakeOver(Change):
    """A change from interpreted to compiled programs of one session.

    Attributes:
        updates: made by calls that have begun.
        news: the announcement to make.
        clock: the time in seconds, by which both are compared.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, interpreted: Executable, later: Later, state: DeviceState):
        self._interpreted, self._later, self._state = interpreted, later, state
        self.updates, self.over, self.news = 0, False, ""
        self._outcome: Outcome | None = None
        self._missed: Failure | None = None

    def due(self, inputs: Inputs) -> Executable | None:
        """Return the compiled programs if they are there, agree and are not slower."""
        if self._missed is not None:
            raise self._insisted(self._missed)
        if self.over and self._later.running.interpreted:
            return None  # the warning that said so was made an error, which ended the call before
        before = self.updates
        if self._outcome is None:
            self._outcome = self._compared(self._arrived(before), inputs)
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
            where = f"at {self._unit()} {before}{_measured(outcome)}"
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
        """Return what arrived, or its remedy if it computes something else than what runs now."""
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
        """Return programs that agree with interpreted ones, or why none do."""
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
            chosen = agreeing(trial, self._interpreted, made)
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
        """Return the outcome that all processes agree on; None while that is open."""
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
        """Count the updates of the call that now begins; not where the user interrupts it."""
        self.updates += self._state.config.device_iterations

    def announce(self) -> None:
        """Announce whether compiled programs took over."""
        self._later.announce(self.news)

    def _unit(self) -> str:
        return "update" if self._state.config.training else "batch"

    def close(self) -> None:
        """Stop compiling the programs; nothing takes over any more."""
        self.over = True
        self._later.close()
        if self._later.running.interpreted:
            self._later.running.problem = "the session was closed before compiled ones were ready"


def _measured(made: Executable) -> str:
    """Name the lowerings that a clock has chosen, so that a run can be repeated with them."""
    names = sorted({each.name for each in made.chosen.values()})
    return f" ({' and '.join(names)}, measured)" if names else ""
