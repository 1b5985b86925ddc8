"""Replaying a program as one captured graph: a call costs the host one launch in place of hundreds.

A capture remembers addresses. The session keeps its state where it is, so state stays as it is;
rows of a batch are copied into static buffers before a replay, and results out of them after it.
The first call runs as usual, because libraries choose their kernels then; the second captures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from abele.program import Program, Role, has_effect, subgraphs
from abele.targets.base import Compiled, Run
from abele.warn import warn_user

ENVIRONMENT = "ABELE_CUDA_GRAPHS"
_MOST = 8  # captures of one program; each keeps memory of its own


class Recorder(Protocol):
    """What captures work on a device."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture ``work`` without doing it, and return what does it.

        Raises:
            RuntimeError: something in it cannot be captured.
        """
        ...


class CudaGraphs:
    """Captures work on the current GPU."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See ``Recorder``; other threads may use the GPU meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        return graph.replay


def why_not(program: Program) -> str | None:
    """Return why a program cannot be captured, or None if nothing is known that forbids it."""
    if os.environ.get(ENVIRONMENT) == "0":
        return f"{ENVIRONMENT}=0"
    if program.uses_random:
        return "it draws random numbers"
    if any(True for _ in subgraphs(program.graph)):
        return "it branches or loops by values"
    if any(has_effect(node) for node in program.graph.graph.nodes):
        return "it calls the host"
    return None


def replayed(program: Program, compiled: Compiled, recorder: Recorder) -> Compiled:
    """Return ``compiled``, replayed from its second call on where the program allows that.

    Args:
        program: after the passes of its lowering.
        compiled: of it.
        recorder: captures.
    """
    if why_not(program) is not None:
        return compiled
    return Replayed(program, compiled, recorder)


class Replayed(Compiled):
    """A compiled program, captured for each set of state that it is called with.

    Args:
        program: says which slots are rows of a batch.
        compiled: runs it otherwise.
        recorder: captures.
    """

    def __init__(self, program: Program, compiled: Compiled, recorder: Recorder):
        super().__init__(self._call, compiled.payload)
        self._plain, self._compiled, self._recorder = compiled.run, compiled, recorder
        self._batch = [i for i, slot in enumerate(program.inputs) if slot.role is Role.INPUT]
        self._state = [i for i, slot in enumerate(program.inputs) if slot.role is not Role.INPUT]
        # A program that writes its batch writes the caller's, not a copy.
        self._usable = not any(program.inputs[index].mutated for index in self._batch)
        self._name = program.name
        self._seen: set[tuple[int, ...]] = set()
        self._captures: dict[tuple[int, ...], _Capture] = {}

    def released(self) -> Run:
        """The program without a capture: stages run in threads, each with a stream."""
        return self._compiled.released()

    def _call(self, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        if not self._usable:
            return self._plain(arguments)
        key = tuple(arguments[index].data_ptr() for index in self._state)
        capture = self._captures.get(key)
        if capture is None and len(self._captures) < _MOST:
            capture = self._captured(key, arguments)
        if capture is None:
            return self._plain(arguments)
        rows = [arguments[index] for index in self._batch]
        arguments.clear()
        return capture.replay(rows)

    def _captured(self, key: tuple[int, ...], arguments: Sequence[torch.Tensor]) -> _Capture | None:
        """Capture a call, if it is not the first with this state."""
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


class _Capture:
    """One capture and its static buffers.

    Args:
        run: what is captured.
        arguments: of a call; its state is what the capture works on.
        batch: positions of the rows.
        recorder: captures.
    """

    def __init__(
        self,
        run: Run,
        arguments: Sequence[torch.Tensor],
        batch: Sequence[int],
        recorder: Recorder,
    ):
        self._arguments = list(arguments)
        for index in batch:
            self._arguments[index] = arguments[index].clone()
        self._rows = [self._arguments[index] for index in batch]
        self._outputs: list[torch.Tensor] = []

        def work() -> None:
            self._outputs = run(self._arguments.copy())

        self._replay = recorder.record(work)

    def replay(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for buffer, tensor in zip(self._rows, rows, strict=True):
            buffer.copy_(tensor)
        self._replay()
        # The next replay writes these again.
        return [output.clone() for output in self._outputs]
