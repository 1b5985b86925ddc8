"""When compiled programs take over from interpreted ones: between two calls, after a comparison.

All programs of a session change together, and none of its tensors moves. That something went wrong
costs one warning; steps then stay interpreted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from abele.compile.executable import Executable
from abele.compile.later import Failure, Later, TakeOverWarning
from abele.runtime.agreement import Trial, has_effects
from abele.runtime.device_state import DeviceState
from abele.warn import warn_user

_LOG_LINES = 5


class TakeOver:
    """Watches over the compiled programs of one session.

    Args:
        interpreted: what runs now.
        later: the compiled programs.
        state: of the session.

    Attributes:
        updates: made by calls so far.
        over: nothing will change any more.
        news: what is to be announced, once it is so.
    """

    def __init__(self, interpreted: Executable, later: Later, state: DeviceState):
        self._interpreted, self._later, self._state = interpreted, later, state
        self.updates, self.over, self.news = 0, False, ""

    def due(self, rows: Callable[[], Sequence[torch.Tensor]]) -> Executable | None:
        """What has to run from the call on that begins; None if that stays as it is.

        Args:
            rows: gives the inputs of the call's first micro-batch.
        """
        before, self.updates = self.updates, self.updates + self._state.config.device_iterations
        made = self._arrived(before)
        if made is None:
            return None
        if isinstance(made, Failure):
            self._refuse(made.problem, made.log)
            return None
        return self._compared(made, before, rows)

    def awaited(self) -> Executable:
        """The compiled programs as soon as they are there; the interpreted ones if they fail."""
        made = self._later.wait()
        return self._interpreted if isinstance(made, Failure) else made

    def _arrived(self, updates: int) -> Executable | Failure | None:
        at = self._later.at
        if at is None:
            return self._later.look()
        return self._later.wait() if updates >= at else None

    def _compared(
        self, made: Executable, updates: int, rows: Callable[[], Sequence[torch.Tensor]]
    ) -> Executable | None:
        running = self._later.running
        if has_effects(self._interpreted.programs):
            running.check = "not compared, because prints and host calls would happen twice"
        else:
            try:
                trial = Trial(self._state, rows())
                problem = trial.first_difference(self._interpreted, made)
            except Exception:  # noqa: BLE001 - the call will come to the same error and raise it
                return None
            if problem is not None:
                self._refuse(f"{problem}; results would not be those of plain PyTorch")
                return None
            running.check = "one micro-batch through both"
        running.interpreted, running.since = False, updates
        self.over = True
        self.news = f"compiled programs took over at {self._unit()} {updates}"
        return made

    def _refuse(self, problem: str, log: str = "") -> None:
        self.over = True
        self._later.running.problem = problem
        self._later.close()
        end = "\n".join(["", *log.strip().splitlines()[-_LOG_LINES:]]) if log.strip() else ""
        warn_user(
            f"Compiled programs do not take over: {problem}. Steps stay interpreted, which gives "
            f"the same numbers and is slower. Set ABELE_START=wait to compile first and see the "
            f"compiler's whole output.{end}",
            TakeOverWarning,
        )
        self.news = f"programs stay interpreted: {problem}"

    def announce(self) -> None:
        """Says what has become of the compiled programs."""
        self._later.announce(self.news)

    def _unit(self) -> str:
        return "update" if self._state.config.training else "batch"

    def close(self) -> None:
        """Stops what makes the programs; nothing takes over any more."""
        self.over = True
        self._later.close()
        if self._later.running.interpreted:
            self._later.running.problem = "the session was closed before compiled ones were ready"
