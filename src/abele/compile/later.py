"""Compiled programs that are not there yet, and which programs run until they are.

A session asks between two calls. Whoever makes the programs (``process``) is not its
business, nor is how they are lowered.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from abele.compile import estimates
from abele.compile.start import Start
from abele.targets.base import COMPILED

if TYPE_CHECKING:
    from abele.compile.executable import ChosenLowering, Executable

Announce = Callable[[str], None]
#: Why it takes longer than for other programs.
ONCE = ", because abele's own kernels are compiled first, once on this machine"


class TakeOverWarning(UserWarning):
    """Compiled programs could not take over; steps stay interpreted, which is slower."""


@dataclasses.dataclass(kw_only=True)
class Running:
    """Which programs of a model run now.

    Updates are counted from the first call; without training, batches are.

    Attributes:
        start: how the first steps ran.
        why: why they did not run otherwise, in words.
        manner: how programs run that are as they were lowered, see ``Lowering.manner``.
        required: name of the target if somebody insisted on it: steps may not stay interpreted
            then, so that compiled programs that fail are an error. None if nobody did.
        interpreted: operator by operator with torch's kernels, bitwise plain PyTorch; else as the
            programs were lowered.
        since: the number of updates before the first one that ran as now.
        check: how compiled programs were compared with interpreted ones before they took over.
        problem: why compiled programs did not take over; None if they did, or may yet.
        compile_s: how long another process compiled, in seconds; None before it is done.
        lowerings: how each program is or will be lowered; those of the build record.
        processor_s: processor time that it may take, in seconds; None where nobody can tell.
        expected_s: when it may be done, in seconds after ``began``; None where nobody can tell.
        began: when another process was started, on the clock of ``time.monotonic``.
        once: most of what is compiled is compiled once per machine.
    """

    start: Start = Start.WAIT
    why: str = ""
    manner: str = COMPILED
    required: str | None = None
    interpreted: bool = False
    since: int = 0
    check: str | None = None
    problem: str | None = None
    compile_s: float | None = None
    processor_s: float | None = None
    expected_s: float | None = None
    began: float = 0.0
    once: bool = False
    lowerings: dict[str, ChosenLowering] = dataclasses.field(
        default_factory=dict[str, "ChosenLowering"], repr=False, compare=False
    )

    def sentence(self) -> str:
        """The same in words."""
        if not self.interpreted and self.manner != COMPILED:
            return f"programs {self.manner}; nothing is compiled for them"
        if not self.interpreted:
            after = f" since update {self.since}, interpreted before" if self.since else ""
            return f"compiled programs run{after}"
        if self.problem is not None:
            return f"programs are interpreted: {self.problem}"
        if self.start is Start.INTERPRET:
            return "programs are interpreted, as asked"
        once = ONCE if self.once else ""
        return f"programs are interpreted until compiled ones are ready{self._when()}{once}"

    def left_s(self) -> float | None:
        """How long compiling may take from now on, in seconds; None where nobody can tell.

        Not below zero: then it takes longer than was expected.
        """
        if self.expected_s is None:
            return None
        return max(0.0, self.expected_s - (time.monotonic() - self.began))

    def _when(self) -> str:
        """The same in words."""
        left = self.left_s()
        if left is None:
            return ""
        return f", in {estimates.about(left)}" if left > 0 else ", later than was expected"


@dataclasses.dataclass(frozen=True)
class Failure:
    """Compiled programs will not come.

    Attributes:
        problem: why, in words.
        log: output of the native compiler, if it failed.
    """

    problem: str
    log: str = ""


class Later(abc.ABC):
    """Compiled programs that will be there later.

    Attributes:
        running: kept up to date by the session that they take over in.
        at: they take over at this update and wait to be ready then; as soon as they are if None.
        announce: told in words of what happens, such as that they took over.
    """

    running: Running
    at: int | None
    announce: Announce

    @abc.abstractmethod
    def look(self) -> Executable | Failure | None:
        """What has become of them; None while they are being made. Costs next to nothing."""

    @abc.abstractmethod
    def wait(self) -> Executable | Failure:
        """The same, once that is decided."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stops making them; nobody wants them any more."""


class Ready(Later):
    """Compiled programs that are there, and have to wait until it is their turn.

    Args:
        executable: the programs.
        running: see ``Later``.
        at: see ``Later``.
        announce: see ``Later``.
        after_first: the first call goes on without them, and does not wait for a comparison.
    """

    def __init__(
        self,
        executable: Executable,
        running: Running,
        at: int | None,
        announce: Announce,
        *,
        after_first: bool = False,
    ):
        self._executable, self._waits = executable, after_first
        self.running, self.at, self.announce = running, at, announce

    def look(self) -> Executable | None:
        """Return the programs; None in the first call where that goes on without them."""
        waits, self._waits = self._waits, False
        return None if waits else self._executable

    def wait(self) -> Executable:
        """The programs."""
        return self._executable

    def close(self) -> None:
        """Nobody is making them."""
