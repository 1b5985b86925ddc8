"""The report of a pipeline: each stage's time and memory, and how long stages waited."""

import dataclasses
from typing import Any

from abele.pipeline import PipelineRunner
from abele.pipeline.runner import Measured, state_bytes, timeline
from abele.report.words import count as counted
from poptorch._compiled.model import CompiledModel
from poptorch._compiled.pipelines import Pipelining

HEAD = ("stage", "blocks", "forward ms", "backward ms", "state KiB", "held KiB", "held")


@dataclasses.dataclass(frozen=True)
class PipelineReport:
    """The stages of a compiled model and the times of the latest call; ``print`` it.

    Attributes:
        pipelining: the stages, or why there are none.
        threads: threads of torch for each stage.
        measured: times and memory; None before the first call.
    """

    pipelining: Pipelining
    threads: int = 0
    measured: Measured | None = None

    def as_data(self) -> dict[str, Any]:
        """Return all fields as JSON values: seconds, bytes, shares from 0 to 1."""
        measured, cut = self.measured, self.pipelining.cut
        if cut is None:
            return {"stages": [], "sequential": self.pipelining.reason}
        stages: list[dict[str, Any]] = [
            {"blocks": name, "state_bytes": state}
            for name, state in zip(self.pipelining.names, state_bytes(cut), strict=True)
        ]
        data = {"stages": stages, "threads_per_stage": self.threads}
        if measured is None:
            return data
        for stage, times in zip(stages, measured.stages, strict=True):
            stage["forward_seconds"] = times.forward_ns / 1e9
            stage["backward_seconds"] = times.backward_ns / 1e9
            stage["held_bytes"] = times.held_bytes
            stage["held_micro_batches"] = times.held_micro_batches
        return data | {
            "micro_batches": measured.micro_batches,
            "passages": measured.passages,
            "seconds": measured.window_ns / 1e9,
            "bubble": measured.bubble,
            "ideal_bubble": measured.ideal_bubble,
            "stages_at_once": measured.at_once,
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row per stage under ``HEAD``; times are ms per micro-batch."""
        measured, cut = self.measured, self.pipelining.cut
        if cut is None:
            return []
        lines = []
        for index, state in enumerate(state_bytes(cut)):
            row = [str(index), self.pipelining.names[index]]
            times = ("", "", "", "")
            if measured is not None:
                stage, count = measured.stages[index], measured.micro_batches * measured.passages
                times = (
                    f"{stage.forward_ns / 1e6 / count:.3f}",
                    f"{stage.backward_ns / 1e6 / count:.3f}",
                    f"{stage.held_bytes / 1024:.1f}",
                    str(stage.held_micro_batches),
                )
            lines.append((*row, *times[:2], f"{sum(state.values()) / 1024:.1f}", *times[2:]))
        return lines

    def sentence(self) -> str:
        """Describe the measured and the ideal bubble, or why there is no pipeline."""
        measured = self.measured
        if self.pipelining.cut is None:
            return f"It runs as one program, because {self.pipelining.reason}."
        if measured is None:
            return f"Threads per stage: {self.threads}. Times come with the first call."
        threads = counted(self.threads, "thread")
        return (
            f"{measured.micro_batches} micro-batches, {threads} per stage. Bubble "
            f"{measured.bubble:.0%}; {measured.ideal_bubble:.0%} if all stages were equally fast. "
            f"On average {measured.at_once:.2f} stages worked at the same time."
        )

    def timeline(self) -> str:
        """Draw the first update of the latest call as text."""
        return "" if self.measured is None else timeline(self.measured)

    def __str__(self) -> str:
        rows = [HEAD, *self.rows()]
        if len(rows) == 1:
            return self.sentence()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                text.ljust(width) if column == 1 else text.rjust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, self.sentence(), self.timeline()]).rstrip()


def report_of(compiled: CompiledModel) -> PipelineReport:
    """Return the pipeline report of a compiled model."""
    runner = compiled.session.runner
    if not isinstance(runner, PipelineRunner):
        return PipelineReport(compiled.pipelining)
    return PipelineReport(compiled.pipelining, runner.threads, runner.measured)
