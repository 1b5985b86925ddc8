"""Replay of a program as one CUDA graph: each call launches once instead of hundreds of times.

A CUDA graph contains addresses. The session keeps its state in place, so state is not copied; the
batch is copied into static buffers before a replay, and results out of them after it. If batch and
results are host tensors, these copies are part of the graph. The first call runs uncaptured, as
libraries choose their kernels then; the second is captured. Torch's random numbers differ between
replays.
"""

from __future__ import annotations

import ctypes
import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.program import Program, Role, has_effect, returned_nodes, subgraphs
from abele.targets.base import Compiled, OfBatch, Repeated, Run
from abele.targets.streams import capture_stream
from abele.warn import warn_user

ENVIRONMENT = "ABELE_CUDA_GRAPHS"
_MOST = 8  # captures of one program; each keeps memory of its own
# Results up to this size are small; so many larger ones are in page-locked memory at a time.
_SMALL_BYTES, _MOST_LOCKED = 1 << 16, 16
# Rows of a batch up to this size are copied by one thread.
_ALONE_BYTES = 1 << 21
# Operators that read values of the device while they run.
_ON_HOST = {
    *("abele.value_check.default", "abele.farthest_points.default"),
    *("abele.ctc_loss.default", "abele.ctc_loss_backward.default"),
    "abele.ctc_beam_search.default",
}


class CudaGraphs:
    """Capture of work on the current GPU as CUDA graphs."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture ``work`` as a CUDA graph without running it; return its replay function.

        Other threads may use the GPU meanwhile.

        Raises:
            RuntimeError: ``work`` cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():  # that nothing is in it: some programs return what they get
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            stream = capture_stream()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
        return graph.replay

    def on_host(self, like: torch.Tensor) -> torch.Tensor:
        """Allocate page-locked host memory of a GPU tensor's shape and dtype."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def wait(self) -> None:
        """Wait for the current CUDA stream."""
        torch.cuda.current_stream().synchronize()


def may_be_captured(program: Program) -> bool:
    """Return whether a program may be captured as a CUDA graph.

    The host must not read values during it: no loops, branches, printing or host calls.

    Args:
        program: after the passes of its lowering.
    """
    if os.environ.get(ENVIRONMENT) == "0" or any(True for _ in subgraphs(program.graph)):
        return False
    nodes = program.graph.graph.nodes
    return not any(str(node.target) in _ON_HOST or has_effect(node) for node in nodes)


def replayed(program: Program, compiled: Compiled, recorder: CudaGraphs) -> Compiled:
    """Wrap a compiled program so that CUDA graphs replay it from the second call on.

    Args:
        program: after the passes of its lowering.
        compiled: the compiled ``program``.
        recorder: records CUDA graphs.
    """
    return Replayed(program, compiled, recorder) if may_be_captured(program) else compiled


class Replayed(Compiled):
    """A compiled program with a CUDA graph for each set of state tensors it is called with.

    Args:
        program: says which slots are the batch.
        compiled: runs the program until it is captured.
        recorder: records CUDA graphs.
    """

    replays = True

    def __init__(self, program: Program, compiled: Compiled, recorder: CudaGraphs):
        super().__init__(self._call, compiled.payload)
        self._plain, self._compiled, self._recorder = compiled.run, compiled, recorder
        self._batch = [i for i, slot in enumerate(program.inputs) if slot.role is Role.INPUT]
        self._state = [i for i, slot in enumerate(program.inputs) if slot.role is not Role.INPUT]
        # A program that writes its batch writes the caller's, not a copy.
        self._usable = not any(program.inputs[index].mutated for index in self._batch)
        self._results: list[Any] = [node.meta["val"] for node in returned_nodes(program.graph)]
        self._name = program.name
        self._seen: set[tuple[int, ...]] = set()
        self._captures: dict[tuple[int, ...], _Capture] = {}

    def of_stage(self) -> Run:
        """Return the uncaptured callable: pipeline stages run in threads with own streams."""
        return self._compiled.of_stage()

    def bound(
        self, arguments: Sequence[torch.Tensor], batch: Sequence[int], *, adopted: bool = False
    ) -> OfBatch | None:
        """Return a callable that replays a CUDA graph with host inputs and host outputs.

        Copies both ways are part of the capture, so a call costs one launch and one wait.
        """
        del adopted  # a capture has addresses, which each call compares
        if not self._usable or not self._state:
            return None
        return _FromHost(self, list(arguments), batch, self._recorder)

    def repeated(self) -> Repeated | None:
        """Return a callable that queues several CUDA graph replays with a single wait."""
        return None if not self._usable else self._replays

    def _replays(
        self,
        inputs: list[torch.Tensor],
        batches: Sequence[Sequence[torch.Tensor]],
        kept: Sequence[bool],
        marks: list[Any],
    ) -> list[list[torch.Tensor]]:
        began = time.perf_counter_ns()
        first = len(marks)
        marks += [began] * 2 * len(batches)  # whatever fails, something may have changed
        results: list[list[torch.Tensor]] = []
        key = self._key(inputs)
        for rows, keep in zip(batches, kept, strict=True):
            capture = self._captures.get(key)
            if capture is None:
                arguments = inputs.copy()
                for index, tensor in zip(self._batch, rows, strict=True):
                    arguments[index] = tensor
                results.append(self._call(arguments))
            else:
                results.append(capture.replay(rows, keep=keep))
        self._recorder.wait()
        # Nobody looks at the clock in between: the runs of one program count as equally long.
        each = (time.perf_counter_ns() - began) // len(batches)
        marks[first:] = [began + each * ((i + 1) // 2) for i in range(2 * len(batches))]
        return results

    def captured_from_host(self, arguments: Sequence[torch.Tensor]) -> _HostCapture | None:
        """Capture a CUDA graph including host copies; None if impossible."""
        results = self._results
        try:
            return _HostCapture(self._plain, arguments, self._batch, results, self._recorder)
        except RuntimeError:
            return None  # a capture without the copies says why, if that cannot be either

    def _key(self, arguments: Sequence[torch.Tensor]) -> tuple[int, ...]:
        return tuple(arguments[index].data_ptr() for index in self._state)

    def _call(self, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        if not self._usable:
            return self._plain(arguments)
        key = self._key(arguments)
        capture = self._captures.get(key)
        if capture is None and len(self._captures) < _MOST:
            capture = self._captured(key, arguments)
        if capture is None:
            return self._plain(arguments)
        rows = [arguments[index] for index in self._batch]
        arguments.clear()
        return capture.replay(rows)

    def _captured(self, key: tuple[int, ...], arguments: Sequence[torch.Tensor]) -> _Capture | None:
        """Capture a call as a CUDA graph, unless it is the first with this state."""
        if key not in self._seen:
            if len(self._seen) == _MOST:
                self._seen.clear()
            self._seen.add(key)
            return None
        try:
            capture = _Capture(self._plain, arguments, self._batch, self._recorder)
        except RuntimeError as problem:
            self._usable = False
            first = (str(problem).strip().splitlines() or ["no reason was given"])[0]
            warn_user(
                f"Program {self._name!r} cannot be captured, so each call launches its kernels "
                f"one by one: {first}. Results are the same; {ENVIRONMENT}=0 silences this.",
                UserWarning,
            )
            return None
        self._captures[key] = capture
        return capture


class _FromHost:
    """A callable with fixed state whose batch is on the host; an ``OfBatch``.

    Args:
        program: runs calls until there is a capture.
        arguments: one tensor for each slot; those of the batch are ignored.
        batch: positions of the batch among the slots.
        recorder: waits for the GPU.
    """

    def __init__(
        self,
        program: Replayed,
        arguments: list[torch.Tensor],
        batch: Sequence[int],
        recorder: CudaGraphs,
    ):
        self._program, self._recorder = program, recorder
        self._arguments, self._batch = arguments, batch
        state = set(range(len(arguments))).difference(batch)
        self._device = arguments[min(state)].device
        self._calls = 0
        self._capture: _HostCapture | None = None

    def __call__(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._capture is not None:
            return self._capture.replay(rows)
        given = self._arguments.copy()
        for index, tensor in zip(self._batch, rows, strict=True):
            given[index] = tensor.to(self._device)
        self._calls += 1
        if self._calls == 2:
            self._capture = self._program.captured_from_host(given)
            if self._capture is not None:
                return self._capture.replay(rows)
        results = self._program.run(given)
        self._recorder.wait()
        return results


class _Capture:
    """A CUDA graph of a program, with static buffers for its batch and its results.

    Args:
        run: runs the program; is recorded.
        arguments: of a call; the graph works on its state in place, and on copies of its batch.
        batch: positions of the batch's tensors among the arguments.
        recorder: records the graph.
    """

    def __init__(
        self,
        run: Run,
        arguments: Sequence[torch.Tensor],
        batch: Sequence[int],
        recorder: CudaGraphs,
    ):
        self._arguments = list(arguments)
        for index in batch:
            self._arguments[index] = arguments[index].clone()
        self._rows = [self._arguments[index] for index in batch]
        self._outputs: list[torch.Tensor] = []

        def work() -> None:
            self._outputs = run(self._arguments.copy())

        self._replay = recorder.record(work)

    def replay(self, rows: Sequence[torch.Tensor], *, keep: bool = True) -> list[torch.Tensor]:
        """Queue a replay of the CUDA graph; the next replay overwrites results unless ``keep``."""
        for buffer, tensor in zip(self._rows, rows, strict=True):
            buffer.copy_(tensor)
        self._replay()
        return [output.clone() for output in self._outputs] if keep else self._outputs


class _HostCapture:
    """A CUDA graph that includes copying the batch from the host and results to it.

    Small results are copied to the host in the graph, and from there for the caller. Large ones are
    copied once, into page-locked memory that torch reuses: on a virtual machine, fresh memory of
    other kinds can take longer than the step. Callers who keep many large results get further ones
    in ordinary memory.

    Args:
        run: the callable to capture.
        arguments: of a call; the graph works on its state in place.
        batch: positions of the batch among the arguments.
        results: tensors with the shapes and dtypes of the results.
        recorder: records CUDA graphs.
    """

    def __init__(
        self,
        run: Run,
        arguments: Sequence[torch.Tensor],
        batch: Sequence[int],
        results: Sequence[torch.Tensor],
        recorder: CudaGraphs,
    ):
        given = list(arguments)
        for index in batch:
            given[index] = arguments[index].clone()
        rows = [given[index] for index in batch]
        self._rows = [recorder.on_host(tensor) for tensor in rows]
        self._recorder = recorder
        self._small = {
            index: recorder.on_host(tensor)
            for index, tensor in enumerate(results)
            if tensor.numel() * tensor.element_size() <= _SMALL_BYTES
        }
        self._large: dict[int, torch.Tensor] = {}
        self._locked: list[weakref.ref[torch.Tensor]] = []

        def work() -> None:
            for tensor, row in zip(rows, self._rows, strict=True):
                tensor.copy_(row, non_blocking=True)
            for index, output in enumerate(run(given.copy())):
                if index in self._small:
                    self._small[index].copy_(output, non_blocking=True)
                else:
                    self._large[index] = output

        self._replay = recorder.record(work)

    def replay(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Replay the CUDA graph and wait; the caller owns the results."""
        for row, tensor in zip(self._rows, rows, strict=True):
            _copy(row, tensor)
        self._replay()
        large = {index: self._fetched(tensor) for index, tensor in self._large.items()}
        self._recorder.wait()
        small = {index: tensor.clone() for index, tensor in self._small.items()}
        return [value for _, value in sorted({**large, **small}.items())]

    def _fetched(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start copying a GPU result to the host; complete once the device is done."""
        self._locked = [each for each in self._locked if each() is not None]
        if len(self._locked) >= _MOST_LOCKED:  # the caller keeps them
            return tensor.to("cpu")
        result = self._recorder.on_host(tensor).copy_(tensor, non_blocking=True)
        self._locked.append(weakref.ref(result))
        return result


def _copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a batch tensor between host buffers.

    Torch wakes threads from 32,768 elements on, which takes longer than copying some hundred KiB.
    """
    size = to.numel() * to.element_size()
    alike = to.dtype == source.dtype and to.shape == source.shape and source.device.type == "cpu"
    plain = (
        to.is_contiguous() and source.is_contiguous() and not (source.is_conj() or source.is_neg())
    )
    if alike and plain and size <= _ALONE_BYTES:
        ctypes.memmove(to.data_ptr(), source.data_ptr(), size)
    else:
        to.copy_(source)
