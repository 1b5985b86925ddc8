"""Interfaces of targets (devices that run programs) and of their lowerings."""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from abele._torch import OpOverload
from abele.errors import ForeignExecutable
from abele.passes import Pass
from abele.program import Program
from abele.program.memory import MemoryUse, of_graph
from abele.targets.kernel_choice import TORCH, Kernel, operators_of

_REPEATS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocked:
    """A program instrumented to time each of its kernels.

    Attributes:
        run: the instrumented callable.
        kernels: in execution order.
        times: returns the start and end of each kernel in the latest run, in ns of
            ``time.perf_counter_ns``; zeros for kernels that did not run.
        cost_ns: timing overhead of one kernel.
    """

    run: Run
    kernels: tuple[Kernel, ...]
    times: Callable[[], Sequence[tuple[int, int]]]
    cost_ns: float


class GraphClocks:
    """Timestamps around the operators of a graph that is run as a Python function.

    Args:
        nodes: the program's nodes by name, if the instrumented graph is another one.

    Attributes:
        look: reads the clock, in ns.
        moments: start and end of each kernel in the latest run.
    """

    def __init__(self, nodes: Mapping[str, torch.fx.Node] | None = None) -> None:
        self.look = time.perf_counter_ns
        self.moments: list[int] = []
        self._nodes = nodes
        self._kernels: list[Kernel] = []

    def place(self, node: torch.fx.Node) -> int:
        """Reserve two timestamp entries for a node; return the index of the first."""
        of = node if self._nodes is None else self._nodes[node.name]
        self._kernels.append(Kernel(what=_who(node.target), nodes=(of,)))
        self.moments.extend((0, 0))
        return len(self.moments) - 2

    def clocked(self, run: Run) -> Clocked:
        """Return the instrumented program whose ``run`` times each function it calls."""

        def begun(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            self.moments[:] = [0] * len(self.moments)
            return run(inputs)

        look = _look_ns()

        def times() -> list[tuple[int, int]]:
            moments = zip(self.moments[::2], self.moments[1::2], strict=True)
            return [(began, max(began, ended - look)) for began, ended in moments]

        return Clocked(run=begun, kernels=tuple(self._kernels), times=times, cost_ns=2 * look)


def _who(target: Any) -> str:
    called: Any = target
    if isinstance(target, OpOverload) and called.namespace != "abele":
        return TORCH
    return str(getattr(called, "__name__", called)).removesuffix(".default")


def _look_ns() -> int:
    """Return the nanoseconds that reading the clock and storing the timestamp takes."""
    look, moments = time.perf_counter_ns, [0, 0]
    costs: list[int] = []
    for _ in range(_REPEATS):
        moments[0] = look()
        moments[1] = look()
        costs.append(moments[1] - moments[0])
    return sorted(costs)[_REPEATS // 4]


if TYPE_CHECKING:
    from abele.kernels.build import Making

#: How programs run whose lowering compiles them; see ``Lowering.manner``.
COMPILED = "are compiled"

# Takes the tensors of the program's input slots, updates the mutated ones in place and returns
# the outputs. The list is the callee's to clear.
Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]
#: Gets the position of an input and the value that would be written into it; returns the value.
Take = Callable[[int, torch.Tensor], torch.Tensor]

# The same for a program that has its state: takes the tensors of the slots that are the batch.
OfBatch = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


# Runs a program for one micro-batch after the other, with no Python between them. Takes the inputs
# as ``Run`` does, ignoring those of the batch; the batch of each run; whether the results of each
# run are wanted; and a list that gets beginning and end of each run, in ns of
# ``time.perf_counter_ns``, the first before anything changes. Returns the results of each run.
Repeated = Callable[
    [list[torch.Tensor], Sequence[Sequence[torch.Tensor]], Sequence[bool], list[Any]],
    list[list[torch.Tensor]],
]


class Compiled:
    """A compiled, callable program with the bytes to restore it from.

    Attributes:
        run: the callable.
        payload: contents of the executable for this program; empty if the target stores none.
        plan: the call plan as text, for ``Lowering.load_planned``, or None.
        prepares: ``with_state`` saves work between calls.
        replays: callables of ``bound`` accept host tensors and wait for the device; from the second
            call on, their results are host tensors, too.
        release: returns memory kept between calls to the system; the next one of ``run`` maps it.
    """

    prepares, replays = False, False
    release: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, run: Run, payload: bytes = b"", plan: str | None = None):
        self.run = run
        self.payload = payload
        self.plan = plan

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Return the self-test failure of the linked library kernels, or None.

        Args:
            noted: use this machine's cached record of whether the kernel objects have passed.
        """
        del noted
        return None

    def of_stage(self) -> Run:
        """Return the callable for a pipeline stage, which runs in a thread of its own."""
        return self.run

    def repeated(self) -> Repeated | None:
        """Return a callable that runs several micro-batches in one call; None if unsupported."""
        return None

    def with_state(self, arguments: Sequence[torch.Tensor], *, adopted: bool = False) -> Run:
        """Return ``run`` for calls that pass the same state, which may save work between them.

        Args:
            arguments: one tensor for each slot; those of inputs are ignored.
            adopted: the state is the caller's own and may be written unseen; else only tensor
                operations write it, so that its versions tell whether it has changed.
        """
        del arguments, adopted
        return self.run

    def bound(
        self, arguments: Sequence[torch.Tensor], batch: Sequence[int], *, adopted: bool = False
    ) -> OfBatch | None:
        """Return a callable with the program's state bound to fixed tensors; None if no faster.

        Args:
            arguments: one tensor for each slot, as for ``Run``; those of the batch are ignored.
            batch: positions of the slots that are the batch.
            adopted: the state is the caller's own, who sees to it that its memory stays.
        """
        del arguments, batch, adopted
        return None


@dataclasses.dataclass(frozen=True)
class Source:
    """A program as C++ source text, with the command that compiles it to native code.

    Attributes:
        text: the C++ source.
        command: returns the compile command from the paths of source and shared library.
        loaded: returns the callable program from the compiled code.
    """

    text: str
    command: Callable[[str, str], list[str]]
    loaded: Callable[[bytes], Compiled]


def require_code(payload: bytes, target: str) -> None:
    """Raise ForeignExecutable if an executable's payload contains no compiled code."""
    if not payload:
        raise ForeignExecutable(f"The executable holds no compiled code for target {target!r}.")


class Lowering(abc.ABC):
    """A strategy for compiling and running programs on a target.

    Methods that judge programs (``why``, ``also_measure``) get them before ``passes``; the others
    after, unless they say otherwise.

    Attributes:
        name: identifier in records, cache keys and files; loading dispatches on it.
        passes: graph passes of this lowering, after the common pipeline.
        compiles: compilation takes so long that steps are interpreted meanwhile if the caller
            allows that.
        manner: phrase for reports: how programs with this lowering run.
        certain: programs that ``why`` accepts need no timing against other lowerings.
        trusted: results are never compared with those of the interpreter: it is the interpreter, or
            computes nothing.
    """

    name: str
    compiles: bool = False
    manner: str = COMPILED
    certain: bool = True
    trusted: bool = False
    passes: tuple[Pass, ...] = ()

    @abc.abstractmethod
    def why(self, program: Program) -> str | None:
        """Return why this lowering should compile ``program``, or ``None`` if it should not.

        Args:
            program: after the common pipeline and before any lowering pass.
        """

    def why_not(self, program: Program) -> str | None:
        """Return why this lowering cannot compile ``program``, or ``None`` if it can."""
        del program
        return None

    def why_not_chosen(self, program: Program) -> str | None:
        """Return why this lowering is not chosen by default; ``None`` if it is."""
        return self.why_not(program)

    def also_measure(self, program: Program) -> bool:
        """Return whether to time this lowering even if another one is chosen.

        For lowerings whose ``compile`` takes negligible time.
        """
        del program
        return False

    @abc.abstractmethod
    def compile(self, program: Program) -> Compiled:
        """Compile ``program`` to a callable.

        Raises:
            CompilerError: the compiler behind the target failed.
        """

    def compile_conservatively(self, program: Program) -> Compiled | None:
        """Compile ``program`` again with optimizations that compilers rarely get wrong.

        Called where results of ``compile`` differ from those of the interpreter.

        Returns:
            A slower equivalent of ``compile``'s result, or None if there is none.

        Raises:
            CompilerError: the compiler behind the target failed.
        """
        del program
        return None

    def possible_kernels(self, program: Program) -> Collection[str] | None:
        """Return names of library kernels ``program`` may need; None: all of them.

        Args:
            program: after the common pipeline.
        """
        del program
        return ()

    def required_kernels(self, program: Program) -> Collection[str]:
        """Return the names of the library kernels that a program requires."""
        del program
        return ()

    def source(self, program: Program) -> Source:
        """Return ``program`` as C++ text and the command that compiles it.

        Only compiling CPU lowerings have this; ``compile`` gives the same code.
        """
        raise NotImplementedError(f"lowering {self.name!r} writes no text")

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Restore a compiled program from its payload, without a compiler.

        Args:
            program: after ``passes``.
            payload: the ``payload`` of ``compile``'s result.

        Raises:
            ForeignExecutable: the payload is not one of this lowering.
        """
        del payload
        return self.compile(program)

    def load_planned(self, program: Program, payload: bytes, plan: str) -> Compiled | None:
        """Restore a compiled program from payload and plan, without lowering it again.

        Args:
            program: after the common pipeline and before any lowering pass.
            payload: the ``payload`` of ``compile``'s result.
            plan: the ``plan`` of ``compile``'s result.

        Returns:
            None if that is not possible here, so that ``load`` is needed.

        Raises:
            CorruptExecutable: the plan is damaged.
            ForeignExecutable: the payload is not one of this lowering.
        """
        del program, payload, plan
        return None

    def memory(self, program: Program) -> MemoryUse:
        """Return the memory use of ``program`` at each step, excluding its inputs."""
        return of_graph(program)

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Return the backend of each operator; see ``kernel_choice.reason``."""
        return dict.fromkeys(operators_of(program), self.name)

    def clocked(self, program: Program) -> Clocked | None:
        """Compile a copy of ``program`` that times each kernel; None if unsupported.

        Raises:
            CompilerError: the compiler behind the target failed.
        """
        del program
        return None


class Target(abc.ABC):
    """A device that runs programs, with its lowerings.

    Attributes:
        name: as in ``ABELE_TARGET``.
        lowerings: in order of preference; the first that accepts a program is used, unless another
            one measures faster.
        cacheable: its executables are worth storing on disk.
        measures: candidate lowerings are timed and the fastest is used, not the first.
        apart: passes that run before a lowering is chosen, because all lowerings would decompose
            the same layers.
    """

    name: str
    lowerings: tuple[Lowering, ...]
    cacheable: bool = False
    measures: bool = True
    apart: tuple[Pass, ...] = ()

    def unavailable(self) -> str | None:
        """Return why programs cannot run on this target here, or ``None`` if they can."""
        return None

    def why_slow(self) -> str | None:
        """Return why compiled programs are slow on this machine; None if they are not."""
        return None

    def setup_seconds_left(self, needed: Collection[str] | None = None) -> float:
        """Return the CPU seconds of one-time kernel compilation still to be done.

        Args:
            needed: names of library kernels, see ``Lowering.required_kernels``; None: all.
        """
        del needed
        return 0.0

    def preparing(self, needed: Collection[str] | None = None) -> list[list[Making]]:
        """Return the one-time compile jobs of ``prepare``, to run in another process.

        Returns:
            Stages, one after the other.
        """
        del needed
        return []

    def prepare(self, needed: Collection[str] | None = None) -> None:
        """Compile library kernels that are missing from this machine's cache.

        Raises:
            CompilerError: a kernel cannot be compiled. Compiling a program that requires it raises
                the same; other programs do not need it.
        """
        return

    def cannot_compile(self, lowerings: Collection[str] | None = None) -> str | None:
        """Return why programs cannot be compiled here, or ``None``; loading may work.

        Args:
            lowerings: names of the candidate lowerings; None: any.
        """
        del lowerings
        return self.unavailable()

    def choose(self, program: Program) -> tuple[Lowering, str]:
        """Return the lowering for ``program`` by rules, without timing, and the reason.

        ``program`` is after the common pipeline: equal and unused operators are eliminated, and no
        lowering pass has changed what the rules count.
        """
        for lowering in self.lowerings:
            reason = lowering.why(program)
            if reason is not None:
                return lowering, reason
        raise AssertionError(f"no lowering of target {self.name!r} takes {program.name!r}")

    def why_not_chosen(self, program: Program, before: Lowering) -> dict[str, str]:
        """Return the reasons, by name, why preceding lowerings reject ``program``.

        Args:
            program: as for ``choose``.
            before: the lowering up to which reasons are returned.
        """
        earlier = self.lowerings[: self.lowerings.index(before)]
        reasons = {each.name: each.why_not_chosen(program) for each in earlier}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def lowering(self, name: str) -> Lowering:
        """Return the target's lowering called ``name``.

        Raises:
            ForeignExecutable: this target has none of that name.
        """
        for lowering in self.lowerings:
            if lowering.name == name:
                return lowering
        known = ", ".join(lowering.name for lowering in self.lowerings)
        raise ForeignExecutable(
            f"The executable was lowered by {name!r}, which target {self.name!r} does not have "
            f"(it has {known}). Compile the program again."
        )

    @abc.abstractmethod
    def device(self) -> torch.device:
        """Return the torch device of a program's tensors on this target."""

    @abc.abstractmethod
    def interpreted(self, program: Program, take: Take | None = None) -> tuple[Program, Run]:
        """Return a program for torch's own kernels on this device, and its callable.

        Args:
            program: after the common pipeline and before any lowering pass.
            take: gets new state, which is then not written.
        """

    def toolchain(self) -> str:
        """Return an identifier of this target's compiler; empty if there is none."""
        return ""

    @abc.abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return all machine properties that decide whether an executable can run here."""
