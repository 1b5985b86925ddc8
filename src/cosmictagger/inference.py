"""``mode=inference`` and ``mode=evaluate``: every event of a file once, in order.

Inference writes predictions, event displays and a report; evaluate writes numbers only.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cosmictagger import metrics, sources
from cosmictagger.backends import Backend, StepResult
from cosmictagger.config.mode import ModeKind
from cosmictagger.data import Batch, EventLoader
from cosmictagger.data.loader import BatchStream
from cosmictagger.errors import BackendError, DataError
from cosmictagger.launch import Launch
from cosmictagger.progress import Bar
from cosmictagger.records import Table, log_step, logger
from cosmictagger.stopping import Stop
from cosmictagger.tensorboard import Summaries
from cosmictagger.timings import Timings, closing_lines, split_line, throughput

_SYNTHETIC_STEPS = 500


def infer(launch: Launch) -> int | None:
    """Runs the network over the events, from ``mode.start_index`` on.

    Args:
        launch: a settled configuration with folder and record.

    Returns:
        The number of the signal that ended it early, or None.

    Raises:
        CheckpointError: there are no weights, or those of another network.
        DataError: an event cannot be read, or its scores are no numbers.
    """
    config = launch.config
    with sources.in_order(config, launch.data_seed) as events:
        backend = launch.backend(events.image_size, training=False)  # type: ignore[attr-defined]
        try:
            launch.load_for_inference(backend)
            return Pass(launch, backend, events).run()
        finally:
            backend.close()


class Pass:
    """One pass over the events.

    Args:
        launch: configuration, folder and record.
        backend: with its weights.
        events: in order.
    """

    def __init__(self, launch: Launch, backend: Backend, events: BatchStream):
        self.launch, self.backend, self.events = launch, backend, events
        self.mode = launch.config.mode
        self.timings = Timings()
        self._table = Table(launch.folder / "ana_metrics.csv")
        self._rows: list[Mapping[str, float]] = []
        self._counts: list[int] = []
        self._losses: list[tuple[float, int]] = []

    def run(self) -> int | None:
        """Makes the pass and everything that belongs to it."""
        batches = self._batches()
        total = self._total()
        summaries = Summaries(self.launch.folder / "ana", 0, self._writes)
        with contextlib.ExitStack() as stack:
            stack.callback(summaries.close)
            stop = stack.enter_context(Stop())
            results = self._results(stack)
            bar = stack.enter_context(Bar(total, self.mode.name.name))
            for index in range(total):
                if stop.signal is not None:
                    break
                with self.timings.iteration(index):
                    values = self._step(index, batches, results)
                if values and index % self.mode.summary_iteration == 0:
                    summaries.scalars(index, values)
                bar.step(values)
        self._end(stop.signal, results)
        return stop.signal

    @property
    def _writes(self) -> bool:
        return self.mode.name is ModeKind.inference and self.launch.config.run.saver

    def _batches(self) -> Iterator[Batch]:
        return sources.beginning_at(self.events, self.mode.start_index)

    def _total(self) -> int:
        size, start = self.events.batch_size, self.mode.start_index
        whole = math.ceil(self.events.events / size) - start // size
        asked = self.launch.config.run.iterations
        if asked is None and not isinstance(self.events, EventLoader):
            asked = _SYNTHETIC_STEPS
        return max(1, whole if asked is None else min(asked, whole))

    def _results(self, stack: contextlib.ExitStack) -> Any:
        """The writer of files, which gives them their names when the pass has ended well."""
        if self.mode.name is not ModeKind.inference:
            return None
        from cosmictagger.results import ResultsWriter

        return stack.enter_context(
            ResultsWriter(
                self.launch.folder,
                size=sources.stored_size(self.events),
                downsample=self.launch.config.data.downsample,
                proof=self.backend.proof,
                displays=self.mode.displays,
                settings=self._settings(),
                progress=sys.stderr.isatty(),
            )
        )

    def _settings(self) -> dict[str, object]:
        """What the report names besides the proof."""
        config, network = self.launch.config, self.backend.network
        count = sum(value.numel() for value in network.parameters())
        return {
            "run": config.run.id,
            "network": f"{config.network.name}, {count:,} parameters",
            **self.launch.weights_said,
            "events": sources.said(config),
        }

    def _step(self, index: int, batches: Iterator[Batch], results: Any) -> dict[str, float]:
        started = time.perf_counter()
        with self.timings.part("io"):
            batch = next(batches)
        with self.timings.part("forward"):
            result = self.backend.evaluate_step(batch)
        if self.backend.evaluation_steps != index + 1:
            raise BackendError(
                f"{index + 1} steps were made, but {self.backend.evaluation_steps} went through "
                "the backend."
            )
        if index == 0:
            self.launch.prove(self.backend)
        self._check(batch, result)
        with self.timings.part("metrics"):
            values, rows = self._measure(batch, result)
        if results is not None:
            with self.timings.part("summary"):
                results.add(batch, result.logits, rows, self._particles(batch))
        speeds = {"images_per_second": len(batch) / (time.perf_counter() - started)}
        if index % self.mode.logging_iteration == 0:
            if values:
                self._table.add(index, values)
            log_step("ana", index, {**values, **speeds})
        self._counts.append(len(batch))
        return {**values, **speeds}

    def _check(self, batch: Batch, result: StepResult) -> None:
        for row, entry in enumerate(batch.entries):
            if not all(bool(plane[row].isfinite().all()) for plane in result.logits):
                ids = tuple(int(number) for number in batch.event_ids[row])
                raise DataError(
                    f"Scores of event {entry} (run, subrun, event {ids}) are no numbers. Look at "
                    "that event and at the weights, or choose run.precision=float32."
                )

    def _measure(
        self, batch: Batch, result: StepResult
    ) -> tuple[dict[str, float], list[Mapping[str, float]] | None]:
        if batch.label is None:
            return {}, None
        rows = metrics.per_event(result.logits, batch.label)
        self._rows += rows
        loss = float(result.loss)  # type: ignore[arg-type]  there are labels
        self._losses.append((loss, len(batch)))
        return {"loss": loss, **metrics.compute(result.logits, batch.label)}, list(rows)

    def _particles(self, batch: Batch) -> list[Any] | None:
        if not isinstance(self.events, EventLoader):
            return None
        places = [self.events.locate(entry) for entry in batch.entries]
        return [file.particles(event) for file, event in places]

    def _end(self, signal: int | None, results: Any) -> None:
        self.timings.save(self.launch.folder / "profiles")
        means, size = self._means(), self.events.batch_size
        times, split = self.timings.iterations, self.timings.split()
        values = {
            "events": sum(self._counts),
            "metrics": means,
            "images_per_second": throughput(times, size),
            "seconds_per_iteration": split,
        }
        self.launch.prove_end(self.backend, "of this pass", values)
        if signal is not None:
            self.launch.record.end(f"stopped by signal {signal}")
        for line in closing_lines(times, size):
            logger.info(line)
        if split:
            logger.info(split_line(split))
        logger.info(
            f"Inference report: {len(self._counts)} batches processed for "
            f"{sum(self._counts)} entries."
        )
        for name, value in means.items():
            logger.info(f"  {name}: {value:.4f}")
        if results is not None:
            logger.info(f"Report: {results.files.report}")

    def _means(self) -> dict[str, float]:
        """Means over events; of events where a metric is defined."""
        if not self._rows:
            return {}
        count = sum(number for _, number in self._losses)
        loss = sum(value * number for value, number in self._losses) / count
        return {"loss": loss, **metrics.average(self._rows)}
