"""A session whose micro-batches pass through the stages of a pipeline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.collectives.protocol import Collective
from abele.compile.executable import Executable
from abele.pipeline.cut import Cut
from abele.pipeline.lanes import lanes
from abele.pipeline.report import Measured, measured
from abele.pipeline.running import MicroBatch, Passage, Pipeline
from abele.pipeline.workers import WorkerPool, share_of_cores
from abele.program import Program
from abele.runtime.anchors import Anchor
from abele.runtime.clock import clock, nanoseconds
from abele.runtime.session import Session, assemble
from abele.step.batching import MicroStep
from abele.step.config import StepConfig
from abele.targets.base import Run

_Step = tuple[MicroStep, list[torch.Tensor]]


class PipelinedSession(Session):
    """Runs the parts of a cut program, stages at the same time.

    Numbers are those of a ``Session`` that runs the whole: every micro-batch sees the same weights,
    gradients are added in the same order, and random numbers are drawn in the same order.

    Args:
        executable: the parts' programs, and ``apply`` for training.
        config: how one call consumes its batch.
        params: as for ``Session``.
        buffers: as for ``Session``.
        optimizer_state: as for ``Session``.
        hyper: as for ``Session``.
        anchors: as for ``Session``.
        collective: as for ``Session``.
        cut: what the parts are parts of.

    Attributes:
        measured: what the last call took; ``None`` before it.
    """

    def __init__(
        self,
        executable: Executable,
        config: StepConfig,
        params: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, torch.Tensor] | None = None,
        hyper: Mapping[str, float] | None = None,
        anchors: Sequence[Anchor] = (),
        collective: Collective | None = None,
        *,
        cut: Cut,
    ):
        self.cut = cut
        self.measured: Measured | None = None
        self._crew = WorkerPool(cut.stages, share_of_cores(cut.stages))
        super().__init__(
            executable, config, params, buffers, optimizer_state, hyper, anchors, collective
        )
        self._pipeline = Pipeline(
            cut,
            {program.name: self._released(program.name) for program in cut.programs},
            lambda program: [self._arguments(program, r) for r in range(config.replicas)],
            self._stream,
            lanes(self.device, cut.stages),
            self._crew,
            clock(self.device),
        )

    @property
    def threads(self) -> int:
        """Threads of torch for each stage."""
        return self._crew.threads

    def close(self) -> None:
        """Ends the workers; alone, another call starts them again."""
        super().close()
        self._crew.close()

    def _released(self, name: str) -> Run:
        return self.executable.compiled[name].released()

    def _programs(self) -> Sequence[Program]:
        # Also what no part uses, as in a session that runs the whole.
        return (self.cut.whole, *self.executable.programs)

    def _model_program(self, programs: Mapping[str, Program]) -> Program:
        return self.cut.whole

    def _model_call(self, model: Program) -> Run:
        def run(arguments: list[torch.Tensor]) -> Any:
            raise AssertionError(f"{model.name} runs in parts")

        return run

    def _micro_steps(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        kept: list[list[torch.Tensor]] = []
        passages: list[Passage] = []
        for steps in _by_update(self._micro_batches(batch)):
            self.marks.append(time.perf_counter_ns())  # something has begun
            passage = self._pipeline.run(
                [
                    MicroBatch(step.replica, rows, step.keeps or self._anchors is not None)
                    for step, rows in steps
                ]
            )
            updates = steps[-1][0].updates
            applied = self._update() if updates else None
            passages.append(self._timed(passage, len(steps)))
            for (step, _), outputs in zip(steps, passage.outputs, strict=True):
                if outputs is not None and self._anchors is not None:
                    own = applied if step.updates else None
                    outputs = self._anchors.take(step.index, outputs, own)
                if step.keeps and outputs is not None:
                    kept.append(outputs)
        self.measured = measured(self.cut.stages, passages)
        return assemble(kept, self.config)

    def _timed(self, passage: Passage, count: int) -> Passage:
        """The passage with its times in ns, of which the session's marks follow.

        Micro-steps overlap; a mark says when one has left, which is when the next one's time
        begins. The last one's ends with the update.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        raw = [moment for timed in passage.times for moment in (timed.begin, timed.end)]
        moments = nanoseconds([*raw, self._mark()])
        pairs = zip(moments[::2], moments[1::2], strict=False)
        times = [
            dataclasses.replace(timed, begin=begin, end=end)
            for timed, (begin, end) in zip(passage.times, pairs, strict=True)
        ]
        last = [
            max((timed.end for timed in times if timed.task.micro_batch == k), default=moments[-1])
            for k in range(count)
        ]
        last[-1] = moments[-1]
        begin = self.marks.pop()
        for end in last:
            end = max(begin, end)
            self.marks += [begin, end]
            begin = end
        return dataclasses.replace(passage, times=times)


def _by_update(steps: Iterable[_Step]) -> Iterator[list[_Step]]:
    """The micro-steps of one update after those of another; all of a call without updates."""
    waiting: list[_Step] = []
    for step in steps:
        waiting.append(step)
        if step[0].updates:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
