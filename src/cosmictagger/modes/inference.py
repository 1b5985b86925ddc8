"""Inference: labels each event of a file once, in order, on one or several instances."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abele.storage import state_file
from cosmictagger import measures, sources
from cosmictagger.backends import Backend, Proof, StepResult
from cosmictagger.data.loader import Batch, BatchStream, EventLoader
from cosmictagger.errors import BackendError, DataError, InstanceError
from cosmictagger.launch import Launch
from cosmictagger.modes.stopping import Stop
from cosmictagger.recording import (
    Bar,
    Summaries,
    Table,
    Timings,
    closing_lines,
    log_step,
    logger,
    split_line,
    throughput,
)
from cosmictagger.results.tally import (
    Candidates,
    EventRecord,
    Neutrino,
    Row,
    Tally,
    Whole,
    joined_candidates,
    neutrino_of,
)

if TYPE_CHECKING:
    from cosmictagger.results.writer import Collector

_SYNTHETIC_STEPS = 500
_FOLDER, _PART = "parts", "part.ckpt"


@dataclass(frozen=True)
class Step:
    """The result of one inference batch.

    Attributes:
        index: number of the batch, counted over all instances.
        values: loss and metrics; empty without labels.
        rows: its events, with metrics of each if there are labels.
        images_per_second: of this step.
    """

    index: int
    values: Mapping[str, float]
    rows: Sequence[Row]
    images_per_second: float

    @property
    def shown(self) -> dict[str, float]:
        """Metrics of the batch for log, progress bar and TensorBoard."""
        return {**self.values, "images_per_second": self.images_per_second}


@dataclass(frozen=True)
class Passed:
    """The result of an inference pass, or of one instance's share.

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
    def rows(self) -> list[Row]:
        """The rows (metrics, ids) of the events that were labelled."""
        return [row for step in self.steps for row in step.rows]

    def means(self) -> dict[str, float]:
        """Return metrics averaged over events, NaN excluded; empty without labels."""
        rows = [row.metrics for row in self.rows if row.metrics]
        if not rows:
            return {}
        losses = {
            name: sum(step.values[name] * len(step.rows) for step in self.steps) / len(rows)
            for name in self.steps[0].values
            if name.startswith("loss")
        }
        return {**losses, **measures.average(rows)}


def infer(launch: Launch) -> int | None:
    """Run inference over the events from ``mode.start_index`` on.

    Returns:
        The number of the signal that ended it early, or None.
    """
    config, instances = launch.config, launch.instances
    with contextlib.ExitStack() as stack:
        with instances.together("the generated events"):
            if instances.is_first:
                sources.prepare(config)
        with instances.together("the events"):
            events = stack.enter_context(sources.in_order(config, launch.data_seed, instances))
        with instances.together("the network"):
            backend = launch.backend(events.image_size, training=False)
            stack.callback(backend.close)
        launch.load_for_inference(backend)
        one_pass = Pass(launch, backend, events)
        return one_pass.run() if instances.count == 1 else one_pass.run_shared()


class Pass:
    """An inference pass over the events, or over this instance's share of the events.

    Attributes:
        steps: those made so far.
    """

    def __init__(self, launch: Launch, backend: Backend, events: BatchStream):
        self.launch, self.backend, self.events = launch, backend, events
        self.mode = launch.config.mode
        self.timings = Timings()
        self.steps: list[Step] = []

    def run(self) -> int | None:
        """Run the inference pass and write all result files."""
        passed, collected = self._made(self.launch.folder)
        self._end(passed, collected.confusion, collected.candidates, {})
        return passed.signal

    def run_shared(self) -> int | None:
        """Run this instance's share of an inference pass; the first instance joins all shares.

        Returns:
            The number of the signal that ended any instance early, or None.
        """
        instances, parts = self.launch.instances, self.launch.folder / _FOLDER
        # Its number tells the parts of this pass from those of one that was killed.
        process = instances.from_first("the parts of the pass", os.getpid())
        folders = [parts / f"{process}-{index}" for index in range(instances.count)]
        folder = folders[instances.index]
        state_file.write(folder / _PART, _stored(*self._made(folder)))
        instances.gather("the end of the steps of a pass", None)
        signal = None
        with instances.together("joining the parts of the pass"):
            if instances.is_first:
                signal = self._join(folders)
                shutil.rmtree(parts)
        return instances.from_first("the end of the pass", signal)

    def _made(self, folder: Path) -> tuple[Passed, Collector]:
        """Run the inference steps of this instance; predictions are written to a folder."""
        from cosmictagger.results import writer

        size, downsample = self.events.image_size, self.launch.config.data.downsample
        alone = self.launch.instances.count == 1
        network = self.launch.config.network
        heads = network.classification.active, network.vertex.active
        frame = self.events.frame if any(heads) else None
        opened = writer.predictions_writer(folder, size, frame, heads)
        with Stop(alone) as stop, opened as predictions:
            collected = writer.Collector(predictions, downsample, self.mode.displays)
            self._loop(stop, collected)
        proof = self.backend.proof()
        self.timings.save(self.launch.folder / "profiles", self.launch.instances.index)
        times = self.timings
        return Passed(self.steps, proof, times.iterations, times.split(), stop.signal), collected

    def _loop(self, stop: Stop, collected: Collector) -> None:
        """Run the inference steps of this instance until a stop signal."""
        batches = sources.beginning_at(self.events, self.mode.start_index)
        indices = sources.turns(self.events, self.mode.start_index, self._total())
        first = self.launch.instances.is_first
        with Bar(len(indices), self.mode.name.name, shown=first) as bar:
            for index in indices:
                if stop.signal is not None:
                    break
                with self.timings.iteration(index):
                    self.steps.append(self._step(index, batches, collected))
                stop.is_underway = True
                bar.step(self.steps[-1].shown)

    def _total(self) -> int:
        """Return the number of batches of all instances."""
        size, start = self.events.batch_size, self.mode.start_index
        whole = math.ceil(self.events.events / size) - start // size
        iterations = self.launch.config.run.iterations
        if iterations is None and not isinstance(self.events, EventLoader):
            iterations = _SYNTHETIC_STEPS
        return max(1, whole if iterations is None else min(iterations, whole))

    def _step(self, index: int, batches: Iterator[Batch], collected: Collector) -> Step:
        started = time.perf_counter()
        with self.timings.part("io"):
            batch = next(batches)
        with self.timings.part("forward"):
            result = self.backend.evaluate_step(batch)
        steps = len(self.steps) + 1
        if self.backend.evaluation_steps != steps:
            raise BackendError(
                f"{steps} steps were made, but {self.backend.evaluation_steps} went through "
                "the backend."
            )
        self.launch.prove(self.backend)
        _check_finite(batch, result)
        with self.timings.part("metrics"):
            values, rows = self._measured(batch, result)
        with self.timings.part("summary"):
            collected.add(batch, result.logits, rows)
        speed = len(batch) / (time.perf_counter() - started)
        step = Step(index, values, rows, speed)
        if index % self.mode.logging_iteration == 0:
            log_step("ana", index, step.shown)
        return step

    def _measured(self, batch: Batch, result: StepResult) -> tuple[dict[str, float], list[Row]]:
        """Return metrics of a batch (none without labels) and rows of its events."""
        values: dict[str, float] = {}
        metrics: list[dict[str, float]] = [{} for _ in batch.entries]
        if batch.label is not None and result.loss is not None:
            values = measures.losses(result.loss, result.parts)
            values |= measures.compute(result.logits, batch.label)
            metrics = measures.per_event(result.logits, batch.label, batch.image != 0)
            if batch.event_label is not None and batch.vertex is not None:
                heads, truth = (
                    (result.event_label, result.vertex),
                    (batch.event_label, batch.vertex),
                )
                table = measures.of_heads(*heads, *truth, self.events.frame.size)
                values |= measures.head_means(table)
                for each, row in zip(metrics, table, strict=True):
                    each |= measures.head_means(row[None])
        neutrinos: list[Neutrino | None] = [None for _ in batch.entries]
        if isinstance(self.events, EventLoader):
            file = self.events.file
            neutrinos = [neutrino_of(file.particles(entry)) for entry in batch.entries]
        ids: list[tuple[int, int, int]] = [tuple(each) for each in batch.event_ids.tolist()]
        rows = map(Row, batch.entries, ids, metrics, neutrinos, _wholes(batch, result))
        return values, list(rows)

    def _join(self, folders: Sequence[Path]) -> int | None:
        """Merge the result files of all instances."""
        from cosmictagger.results import writer

        parts = [_read(folder, index) for index, folder in enumerate(folders)]
        passed = _joined([part for part, _, _ in parts])
        entries = [[row.entry for row in part.rows] for part, _, _ in parts]
        by_folder = dict(zip(folders, entries, strict=True))
        if passed.steps:
            writer.join_predictions(by_folder, self.launch.folder)
        candidates = joined_candidates([candidates for _, _, candidates in parts])
        confusion = sum(confusion for _, confusion, _ in parts)
        self._end(passed, confusion, candidates, {"instances": len(folders)})
        return passed.signal

    def _end(
        self, passed: Passed, confusion: Any, candidates: Candidates, more: dict[str, object]
    ) -> None:
        """Write tables, report, record and log of the inference pass."""
        rows = passed.rows
        report = None
        if rows:
            report = self._report(Tally(rows, confusion), candidates, passed.proof, more)
        self._record(passed.steps)
        means, times = passed.means(), list(passed.seconds)
        images: float = self.launch.config.run.minibatch_size
        if self.launch.instances.count > 1:
            images = len(rows) / max(1, len(times))
        values: dict[str, Any] = {
            "events": len(rows),
            "metrics": means,
            "images_per_second": throughput(times, images),
            "seconds_per_iteration": dict(passed.split),
        }
        self.launch.prove_end(self.backend, "of this pass", values, passed.proof)
        if passed.signal is not None:
            self.launch.record.end(f"stopped by signal {passed.signal}")
        for line in closing_lines(times, images):
            logger.info(line)
        if passed.split:
            logger.info(split_line(passed.split))
        logger.info(
            f"Inference report: {len(passed.steps)} batches processed for {len(rows)} entries."
        )
        for name, value in means.items():
            if not name.startswith("charge/plane"):
                logger.info(f"  {name}: {value:.4f}")
        if report is not None:
            logger.info(f"Report: {report}")

    def _record(self, steps: Sequence[Step]) -> None:
        """Write the metrics table and the TensorBoard files of the inference steps."""
        table = Table(self.launch.folder / "ana_metrics.csv")
        summaries = Summaries(self.launch.folder / "ana", 0, self.launch.config.run.saver)
        for step in steps:
            if step.values and step.index % self.mode.logging_iteration == 0:
                table.add(step.index, step.values)
            if step.index % self.mode.summary_iteration == 0:
                summaries.scalars(step.index, step.shown)
        summaries.close()

    def _report(
        self, tally: Tally, candidates: Candidates, proof: Proof, more: dict[str, object]
    ) -> Path:
        from cosmictagger.results import writer

        config = self.launch.config
        count = sum(value.numel() for value in self.backend.network.parameters())
        (rows, columns), (height, width) = self.events.stored_size, self.events.image_size
        size = f"{rows} x {columns}, downsample {config.data.downsample} ({height} x {width})"
        settings = {
            "run": config.run.id,
            "network": f"{config.network.name}, {count:,} parameters",
            **self.launch.weights_said,
            "events": sources.described(config),
            **more,
            "image size": size,
        }
        return writer.write_files(
            self.launch.folder,
            tally,
            candidates.events(),
            dataclasses.asdict(proof),
            settings,
        )


def _check_finite(batch: Batch, result: StepResult) -> None:
    for row, entry in enumerate(batch.entries):
        heads = [each for each in (result.event_label, *(result.vertex or ())) if each is not None]
        if not all(bool(each[row].isfinite().all()) for each in (*result.logits, *heads)):
            ids = tuple(batch.event_ids[row].tolist())
            raise DataError(
                f"Scores of event {entry} (run, subrun, event {ids}) are no numbers. Look at that "
                "event and at the weights, or choose run.precision=float32: float16 overflows "
                "where float32 does not."
            )


def _wholes(batch: Batch, result: StepResult) -> list[Whole]:
    """Return what heads say of each event, and what is true of it."""
    empty: list[Any] = [None] * len(batch)
    scores, found, kinds, places = empty, empty, empty, empty
    if result.event_label is not None:
        shares = result.event_label.detach().float().softmax(1)
        scores = [tuple(row) for row in shares.tolist()]
    if result.vertex is not None:
        found = [tuple(map(tuple, row)) for row in measures.vertices(result.vertex).tolist()]
    if batch.event_label is not None and batch.vertex is not None:
        kinds = batch.event_label.tolist()
        places = [
            tuple(tuple(place) if min(place) >= 0 else None for place in row)
            for row in batch.vertex.tolist()
        ]
    return list(map(Whole, scores, found, kinds, places))


def _joined(parts: Sequence[Passed]) -> Passed:
    """Merge the shares of all instances into one pass, with steps in order."""
    steps = sorted((step for part in parts for step in part.steps), key=lambda step: step.index)
    first = next((part for part in parts if part.steps), parts[0])
    names = ("evaluation_steps", "interpreted_steps", "compiled_steps")
    counts = {name: sum(getattr(part.proof, name) for part in parts) for name in names}
    return Passed(
        steps,
        dataclasses.replace(first.proof, **counts),
        [max(turn) for turn in itertools.zip_longest(*(p.seconds for p in parts), fillvalue=0.0)],
        first.split,
        next((part.signal for part in parts if part.signal is not None), None),
    )


def _stored(passed: Passed, collected: Collector) -> dict[str, Any]:
    """Serialize an instance's share of an inference pass to plain values and tensors."""
    content = {
        "passed": dataclasses.asdict(passed),
        "confusion": collected.confusion,
        "most": collected.candidates.most,
        "seen": collected.candidates.seen,
        "events": [
            vars(event) | {"whole": vars(event.whole)} for event in collected.candidates.events()
        ],
    }
    return state_file.plain(content, "a part of a pass")


def _read(folder: Path, index: int) -> tuple[Passed, Any, Candidates]:
    """Load an instance's share of an inference pass, as written by ``_stored``."""
    try:
        content = state_file.read(folder / _PART)
    except FileNotFoundError:
        raise InstanceError(
            f"Instance {index} has made its part of the pass, but instance 0 finds none in "
            f"{folder}. All instances need one output_dir, on a file system that they share.",
            instance=index,
        ) from None
    candidates = Candidates(content["most"])
    for values in content["events"]:
        whole = Whole(**values.pop("whole"))
        candidates.add(EventRecord(**values, whole=whole))
    candidates.seen = content["seen"]
    values = content["passed"]
    steps = [_step(each) for each in values.pop("steps")]
    passed = Passed(steps=steps, proof=Proof(**values.pop("proof")), **values)
    return passed, content["confusion"], candidates


def _step(values: dict[str, Any]) -> Step:
    rows = []
    for row in values.pop("rows"):
        neutrino, whole = row.pop("neutrino"), Whole(**row.pop("whole"))
        rows.append(Row(**row, neutrino=neutrino and Neutrino(**neutrino), whole=whole))
    return Step(rows=rows, **values)
