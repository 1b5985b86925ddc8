"""Execution of the programs of ``torch.compile`` on the tensors of each call.

State is the caller's: parameters and buffers are inputs like any other, so nothing is copied, and
an optimizer may change them between two calls. The programs are built at the first call: a backward
that never runs costs no compiler. As in a session, the first calls are interpreted while another
process compiles, and compiled programs are compared with interpreted ones before they replace them.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import torch

from abele import _torch, questions
from abele.compilation.build import BuildRecord, FallbackWarning, build
from abele.compilation.executable import Announce, Executable, ExecutableSource
from abele.compilation.start import Start
from abele.dynamo.programs import Phase, Split, split
from abele.errors import TargetError
from abele.program import Program, Role, returned_nodes
from abele.runtime.busy_cores import cores
from abele.runtime.device_state import DeviceState
from abele.runtime.proving import Change, pending_change
from abele.step.config import MatmulPrecision, StepConfig
from abele.targets.base import Run
from abele.warn import warn_user

_CONFIG = StepConfig(training=False, adopts=True)
_HOST = torch.device("cpu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings for building the programs of a compiled function.

    Attributes:
        start: how first calls run while nothing is compiled.
        cache: store of executables; None: nothing is stored.
        announce: called with a sentence when compiled programs replace interpreted ones.
    """

    start: Start = Start.TIERED
    cache: ExecutableSource | None = None
    announce: Announce = lambda text: None


class Graph:
    """A graph of ahead-of-time autograd, built at its first call.

    Args:
        graph: as torch gives it; it is not changed.
        phase: what it computes.
        static: names of the placeholders that are parameters or buffers.
        settings: of the compiled function.

    Attributes:
        phase: as given.
        record: of building its program; None before the first call, and if torch runs the graph.
        refused: why torch runs the graph operator by operator; None if a program does.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        phase: Phase,
        static: Collection[str],
        settings: Settings,
    ):
        self.phase: Phase = phase
        self.record: BuildRecord | None = None
        self.refused: str | None = None
        self._graph, self._static, self._settings = graph, static, settings
        self._run = self._first
        _graphs.add(self)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the graph on its inputs; the list is emptied."""
        return self._run(inputs)

    def _first(self, inputs: list[Any]) -> Sequence[Any]:
        with _torch.TRACING:
            if self._run == self._first:  # no other thread has built it meanwhile
                self._run = self._built()
        return self._run(inputs)

    def _built(self) -> Any:
        """Return the function that runs the graph, as a program if possible."""
        try:
            questions.refuse_graphs()
            parts = split(self._graph, self.phase, self._static)
            settings = self._settings
            executable, self.record = build(
                [parts.program],
                dataclasses.replace(_CONFIG, matmul_precision=MatmulPrecision.of_torch()),
                device=_HOST,
                cache=settings.cache,
                start=settings.start,
                announce=settings.announce,
            )
        except (TargetError, Warning):  # the user asked for a target, or made an error of a warning
            raise
        except Exception as error:  # noqa: BLE001 - torch runs the graph, whatever the reason is
            self.refused = str(error) or type(error).__name__
            _warn_refused(self.phase, self.refused)
            return functools.partial(_run_by_torch, self._graph)
        return _Calls(executable, parts).run


_graphs: weakref.WeakSet[Graph] = weakref.WeakSet()


def graphs() -> list[Graph]:
    """Return the graphs of this process that ``torch.compile`` has passed to this backend."""
    return list(_graphs)


def _run_by_torch(graph: torch.fx.GraphModule, inputs: list[Any]) -> Sequence[Any]:
    arguments = list(inputs)
    inputs.clear()
    return graph(*arguments)


@functools.cache
def _warn_refused(phase: str, reason: str) -> None:
    """Warn that torch runs a graph, once in a process for each reason."""
    warn_user(
        f"The {phase} graph of a function of torch.compile(backend='abele') runs operator by "
        f"operator, as in plain PyTorch: {reason}.",
        FallbackWarning,
    )


class _Calls(DeviceState):
    """The calls of one program on tensors that belong to the caller."""

    def __init__(self, executable: Executable, parts: Split):
        super().__init__(executable.programs, _HOST, _CONFIG, {}, {}, {}, {}, None)
        (program,) = executable.programs
        self._name, self._inputs = program.name, program.inputs
        self._now: list[torch.Tensor] = []
        self._taken, self._views, self._sources = parts.taken, parts.views, parts.sources
        self._all = parts.taken == tuple(range(len(parts.taken)))
        self._layouts = [node.meta["val"] for node in returned_nodes(program.graph)]
        self._use(executable)
        self._change = pending_change(executable, self)

    def arguments(self, program: Program, replica: int) -> list[torch.Tensor]:
        """Return the present call's tensors, one for each slot of the program."""
        del program, replica
        return [tensor.detach() for tensor in self._now]

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Run one call; the list of inputs is emptied.

        Args:
            inputs: of the graph, in the order of its placeholders.
        """
        now_ns = time.perf_counter_ns()
        if now_ns > cores.due_ns:
            cores.look(now_ns)
        if self._all and len(inputs) == len(self._taken):
            arguments = inputs
        else:
            arguments = [inputs[index] for index in self._taken]
        if self._change is not None:
            self._follow(self._change, arguments)
        if self._views is None:
            return self._run(arguments)
        kept = [inputs[index] if mine else None for mine, index in self._sources]
        results = self._run(arguments)
        inputs.clear()
        given = [
            value if mine else results[index]
            for value, (mine, index) in zip(kept, self._sources, strict=True)
        ]
        return self._views(given)

    def _follow(self, change: Change, arguments: list[torch.Tensor]) -> None:
        """Switch to compiled programs if they are ready and agree with interpreted ones."""
        with _torch.TRACING:
            if self._change is not change:
                return
            self._now = arguments
            try:
                made = change.due(self._named_inputs)
            finally:
                self._now = []
            if made is not None:
                self._use(made)
            if change.over:
                self._change = None
                change.announce()
            change.count()

    def _use(self, executable: Executable) -> None:
        """Run an executable's program from the next call on."""
        run = executable.compiled[self._name].with_state((), adopted=True)
        trusted = executable.lowering(self._name).trusted
        self._run = run if trusted else functools.partial(self._looked_at, run)

    def _looked_at(self, run: Run, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run a compiled program for the first time, and note results with other strides.

        Compiled programs may lay results out in another way than torch's kernels do, such as images
        with channels last. Callers get them as from torch.
        """
        results = run(arguments)
        other = [
            index
            for index, (result, like) in enumerate(zip(results, self._layouts, strict=True))
            if result.numel() and not _is_laid_out_like(result, like)
        ]
        self._run = functools.partial(self._laid_out, run, other) if other else run
        return self._relaid(results, other)

    def _laid_out(
        self, run: Run, other: Sequence[int], arguments: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        return self._relaid(run(arguments), other)

    def _relaid(self, results: list[torch.Tensor], other: Sequence[int]) -> list[torch.Tensor]:
        with torch.no_grad():
            for index in other:
                result, stride = results[index], self._layouts[index].stride()
                copy = torch.empty_strided(result.shape, stride, dtype=result.dtype)
                results[index] = copy.copy_(result)
        return results

    def _named_inputs(self) -> dict[str, torch.Tensor]:
        pairs = zip(self._inputs, self._now, strict=True)
        return {slot.name: tensor.detach() for slot, tensor in pairs if slot.role is Role.INPUT}


def _is_laid_out_like(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    """Return whether two tensors of a shape have the same strides, but for sizes of 1."""
    pairs = zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in pairs)
