"""The results of a pass over events and their record, the same for one instance or many.

ana_metrics.csv     a row per logged step with labels
ana/                TensorBoard
run.json            means over all events, speed, proof
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cosmictagger.backends import Backend, Proof
from cosmictagger.config.mode import ModeKind
from cosmictagger.launch import Launch
from cosmictagger.measures import metrics
from cosmictagger.recording.records import Table, logger
from cosmictagger.recording.tensorboard import Summaries
from cosmictagger.recording.timings import closing_lines, split_line, throughput


@dataclass(frozen=True)
class Step:
    """One batch of a pass.

    Attributes:
        index: number of the batch, counted over all instances.
        entries: its events.
        values: loss and metrics; empty without labels.
        rows: metrics of each event; empty without labels.
        images_per_second: of this step.
    """

    index: int
    entries: Sequence[int]
    values: Mapping[str, float]
    rows: Sequence[Mapping[str, float]]
    images_per_second: float

    @property
    def shown(self) -> dict[str, float]:
        """What log, bar and TensorBoard show."""
        return {**self.values, "images_per_second": self.images_per_second}


@dataclass(frozen=True)
class Passed:
    """A pass, or the part of one instance.

    Attributes:
        steps: in order.
        proof: where they ran.
        seconds: of each iteration; of several instances those of the slowest.
        split: mean seconds of the parts of an iteration.
        signal: number of the signal that ended it early, or None.
    """

    steps: Sequence[Step]
    proof: Proof
    seconds: Sequence[float]
    split: Mapping[str, float]
    signal: int | None

    @property
    def events(self) -> int:
        """How many events were labelled."""
        return sum(len(step.entries) for step in self.steps)

    def means(self) -> dict[str, float]:
        """Means over events; of events where a metric is defined. Empty without labels."""
        rows = [row for step in self.steps for row in step.rows]
        if not rows:
            return {}
        losses = [(step.values["loss"], len(step.entries)) for step in self.steps if step.rows]
        loss = sum(value * number for value, number in losses) / len(rows)
        return {"loss": loss, **metrics.average(rows)}


class Records:
    """The table and the TensorBoard files of a pass; a context manager."""

    def __init__(self, launch: Launch):
        self._mode = launch.config.mode
        writes = self._mode.name is ModeKind.inference and launch.config.run.saver
        self._table = Table(launch.folder / "ana_metrics.csv")
        self._summaries = Summaries(launch.folder / "ana", 0, writes)

    def add(self, step: Step) -> None:
        """Record a step where that is due."""
        if step.values and step.index % self._mode.logging_iteration == 0:
            self._table.add(step.index, step.values)
        if step.index % self._mode.summary_iteration == 0:
            self._summaries.scalars(step.index, step.shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._summaries.close()


def end(launch: Launch, backend: Backend, passed: Passed, report: Path | None) -> None:
    """Write to record and log what the whole pass has come to.

    Args:
        launch: of the pass.
        backend: with the weights.
        passed: of all instances.
        report: the page that was written, if there is one.
    """
    means, steps = passed.means(), len(passed.steps)
    times, images = list(passed.seconds), _images(launch, passed)
    values: dict[str, Any] = {
        "events": passed.events,
        "metrics": means,
        "images_per_second": throughput(times, images),
        "seconds_per_iteration": dict(passed.split),
    }
    launch.prove_end(backend, "of this pass", values, passed.proof)
    if passed.signal is not None:
        launch.record.end(f"stopped by signal {passed.signal}")
    for line in closing_lines(times, images):
        logger.info(line)
    if passed.split:
        logger.info(split_line(passed.split))
    logger.info(f"Inference report: {steps} batches processed for {passed.events} entries.")
    for name, value in means.items():
        logger.info(f"  {name}: {value:.4f}")
    if report is not None:
        logger.info(f"Report: {report}")


def _images(launch: Launch, passed: Passed) -> float:
    """Return images of an iteration of all instances together."""
    if launch.instances.count == 1:
        return launch.config.run.minibatch_size
    return passed.events / max(1, len(passed.seconds))
