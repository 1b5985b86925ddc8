"""Executables: the compiled programs of a model, and the types of their sources and successors.

An executable may be ready, or be compiled ``Later`` while other programs run. It comes from an
``ExecutableSource`` where that has it, and its results are used after a comparison (``Proving``).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from abele import passes, processor
from abele.compilation import estimates
from abele.compilation.start import Start
from abele.compilation.verdict import Verdict
from abele.program import Program
from abele.targets import Compiled, Lowering, Target
from abele.targets.base import COMPILED

Announce = Callable[[str], None]
#: The reason for an unusually long compile time.
ONCE = ", because abele's own kernels are compiled first, once on this machine"


class TakeOverWarning(UserWarning):
    """Compiled programs could not replace interpreted ones; steps stay interpreted, slower."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenLowering:
    """The name of a program's lowering, and the reason for the choice as text."""

    name: str
    reason: str


def lowerings_of(parts: Mapping[str, Any], name: str) -> list[str]:
    """Return the candidate lowerings of a program by its name; see ``keys.key_parts``."""
    names = parts["lowerings"][name]
    return [names] if isinstance(names, str) else list(names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executable:
    """Compiled or interpreted programs that are ready to run.

    Attributes:
        key: hash of everything that decides what they compute and where they run.
        key_parts: the values of which ``key`` is the hash.
        programs: the programs after all passes. Programs in ``planned`` are as before the passes of
            lowerings; see ``lowered``.
        compiled: one call per program name.
        target: the target that they were compiled for.
        chosen: the fastest lowering of each program that had several.
        later: compiled programs that replace these when they are there.
        planned: names of programs that were loaded with their plans, which have not been lowered.
        common: the programs before the passes of lowerings, for the interpreter and other
            lowerings.
        verdict: agreement of the compiled programs with interpreted ones, if it is known.
        proving: receivers of a verdict; None where no comparison is needed.
    """

    key: str
    key_parts: Mapping[str, Any]
    programs: tuple[Program, ...]
    compiled: Mapping[str, Compiled]
    target: Target
    chosen: Mapping[str, ChosenLowering] = dataclasses.field(
        default_factory=dict[str, ChosenLowering]
    )
    later: Later | None = None
    planned: frozenset[str] = frozenset()
    common: tuple[Program, ...] = ()
    verdict: Verdict | None = None
    proving: Proving | None = None
    _lowered: dict[str, Program] = dataclasses.field(
        default_factory=dict[str, Program], init=False, repr=False, compare=False
    )

    def lowered(self, name: str) -> Program:
        """Return a program after all passes, by name."""
        program = next(each for each in self.programs if each.name == name)
        if name not in self.planned:
            return program
        if name not in self._lowered:
            self._lowered[name] = passes.run_only(program, self.lowering(name).passes)
        return self._lowered[name]

    def lowering(self, name: str) -> Lowering:
        """Return the lowering that compiled a program, by the program's name."""
        chosen = self.chosen.get(name)
        by = lowerings_of(self.key_parts, name)[0] if chosen is None else chosen.name
        return self.target.lowering(by)

    def is_proven(self) -> bool:
        """Return whether an executable's results were compared here, or need no comparison."""
        if all(self.lowering(program.name).trusted for program in self.programs):
            return True
        return self.verdict is not None and self.verdict.machine == self.machine()

    def has_kernels_of_here(self) -> bool:
        """Return whether an executable's library kernels come from this machine's cache."""
        remedied = self.verdict is not None and self.verdict.remedy
        return not remedied and self.key_parts.get("toolchain") == self.target.toolchain()

    def machine(self) -> str:
        """Return a hash of code, target, compiler and processor, which identifies a verdict.

        It covers the machine code and its lowering, the target's description (torch, kernel
        library, instructions), the compiler of the kernels and the processor.
        """
        facts = [self.key, self.target.describe(), self.target.toolchain(), processor.name()]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
        for name in sorted(self.compiled):
            lowering = self.chosen[name].name if name in self.chosen else ""
            digest.update(f"{name}, {lowering}".encode())
            digest.update(hashlib.sha256(self.compiled[name].payload).digest())
        return digest.hexdigest()[:32]


class ExecutableSource(Protocol):
    """A store of executables, such as a cache or a file."""

    def load(
        self, programs: Sequence[Program], parts: Mapping[str, Any], target: Target
    ) -> Executable | None:
        """Return the executable with these key parts, or None if it is absent or unusable."""
        ...

    def why_missing(self, parts: Mapping[str, Any]) -> str:
        """Explain in words why no stored executable has these key parts."""
        ...

    def only_one(
        self, key: str, waiting: Callable[[], None]
    ) -> contextlib.AbstractContextManager[bool]:
        """Keep other processes from compiling the same executable in a ``with`` block.

        Args:
            key: of the executable.
            waiting: called once if another process is compiling it.

        Returns:
            A context manager that yields whether the executable may be stored by now.
        """
        ...

    def store(self, made: Executable) -> bool:
        """Store an executable for the next ``load``; return whether that worked."""
        ...


# -- programs that are compiled while others run -----------------------------------------------


@dataclasses.dataclass(kw_only=True)
class Running:
    """The record of which programs of a model run now, and why.

    Updates are counted from the first call; without training, batches are.

    Attributes:
        start: how the first steps ran.
        why: why they did not run otherwise, in words.
        manner: how lowered programs run; see ``Lowering.manner``.
        required: name of the target if it was forced: steps may not stay interpreted then, so
            that a failed compilation is an error. None if it was not forced.
        interpreted: operator by operator with torch's kernels, bitwise plain PyTorch; else as the
            programs were lowered.
        since: the number of updates before the first one that ran as now.
        check: how compiled programs were compared with interpreted ones before they took over.
        problem: why compiled programs did not take over; None if they did, or still may.
        compile_s: how long another process compiled, in seconds; None before it is done.
        lowerings: how each program is or will be lowered; shared with the build record.
        processor_s: expected processor time of compilation, in seconds; None if unknown.
        expected_s: expected end of compilation, in seconds after ``began``; None if unknown.
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
        default_factory=dict[str, ChosenLowering], repr=False, compare=False
    )

    def sentence(self) -> str:
        """Describe which programs of a model run: interpreted or compiled."""
        if not self.interpreted and self.manner != COMPILED:
            return f"programs {self.manner}; nothing is compiled for them"
        if not self.interpreted:
            after = f" since update {self.since}, interpreted before" if self.since else ""
            return f"compiled programs run{after}"
        if self.problem is not None:
            return f"programs are interpreted: {self.problem}"
        if self.start is Start.INTERPRET:
            return "programs are interpreted, as asked"
        left, when = self.left_s(), ""
        if left is not None:
            when = f", in {estimates.about(left)}" if left > 0 else ", later than was expected"
        once = ONCE if self.once else ""
        return f"programs are interpreted until compiled ones are ready{when}{once}"

    def left_s(self) -> float | None:
        """Return the seconds that compiling may still take, at least 0; None if unknown."""
        if self.expected_s is None:
            return None
        return max(0.0, self.expected_s - (time.monotonic() - self.began))


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failed background compilation: ``problem`` says why, ``log`` is the compiler's output."""

    problem: str
    log: str = ""


class Later(abc.ABC):
    """Programs that another process compiles; a session queries them between two calls.

    Attributes:
        running: the record of what runs, updated by the session.
        at: they take over at this update and wait to be ready then; as soon as they are if None.
        announce: called with a sentence on each event, such as the switch of programs.
    """

    running: Running
    at: int | None
    announce: Announce

    @abc.abstractmethod
    def look(self) -> Executable | Failure | None:
        """Return the compiled programs or their failure, None while they are compiled; cheap."""

    @abc.abstractmethod
    def wait(self) -> Executable | Failure:
        """Wait for the compiled programs or their failure."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop the background compilation of the programs."""


class Ready(Later):
    """Compiled programs that replace interpreted ones at a later update or call.

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
        """Return the compiled programs; None in the first call if that runs without them."""
        waits, self._waits = self._waits, False
        return None if waits else self._executable

    def wait(self) -> Executable:
        """Return the compiled programs, which need no waiting."""
        return self._executable

    def close(self) -> None:
        """Do nothing: no process is compiling the programs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proving:
    """Receivers of the verdict on the compiled programs of an executable.

    Attributes:
        running: the record of what runs.
        source: stores executables that were proven; None where nothing is stored.
        announce: called with a sentence before programs are compiled again.
    """

    running: Running
    source: ExecutableSource | None
    announce: Announce = lambda text: None
