"""Inference and evaluation: each event of a file once, in order, by one instance or by several."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from abele.storage import atomic
from cosmictagger import __version__, checkpoints, measures, sources
from cosmictagger.backends import Backend, Proof, StepResult
from cosmictagger.config.checks import plain
from cosmictagger.config.keys import ModeKind
from cosmictagger.data import Batch, EventLoader
from cosmictagger.data.loader import BatchStream
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

if TYPE_CHECKING:
    from cosmictagger.results.tally import Candidates, Tally


@dataclass(frozen=True)
class Step:
    """A batch of a pass.

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
        """Metrics for log, progress bar and TensorBoard."""
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
        """The number of events that were labelled."""
        return sum(len(step.entries) for step in self.steps)

    def means(self) -> dict[str, float]:
        """Means over events; of events where a metric is defined. Empty without labels."""
        rows = [row for step in self.steps for row in step.rows]
        if not rows:
            return {}
        losses = [(step.values["loss"], len(step.entries)) for step in self.steps if step.rows]
        loss = sum(value * number for value, number in losses) / len(rows)
        return {"loss": loss, **measures.average(rows)}


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


def end_pass(launch: Launch, backend: Backend, passed: Passed, report: Path | None) -> None:
    """Write to record and log what the whole pass has come to."""
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


_FOLDER, _PASS = "parts", "pass.json"
_FORMAT = 1


def run_shared(one_pass: Pass) -> int | None:
    """Make this instance's part of a pass; the first instance joins all of them.

    Returns:
        The number of the signal that ended any instance early, or None.
    """
    launch, instances = one_pass.launch, one_pass.launch.instances
    identity = _identity(one_pass)
    instances.agree("the pass over the events", identity)
    count, parts = instances.count, launch.folder / _FOLDER
    folders = [parts / f"{index}-of-{count}" for index in range(count)]
    with Stop() as stop:
        if _read_part(folders[instances.index], identity) is None:
            _make_part(one_pass, stop, folders[instances.index], identity)
        else:
            logger.warning(f"The part in {folders[instances.index]} was complete already.")
        instances.barrier("the end of the steps of a pass")
        signal = None
        with instances.together("joining the parts of the pass"):
            if instances.is_first:
                signal = _join(one_pass, folders, identity)
    return instances.from_first("the end of the pass", signal)


def _identity(one_pass: Pass) -> dict[str, str]:
    """Return what two parts of one pass have in common, as text."""
    launch, events = one_pass.launch, one_pass.events
    files = events.files if isinstance(events, EventLoader) else []
    return {
        "format": str(_FORMAT),
        "version": __version__,
        "configuration": json.dumps(plain(launch.config), sort_keys=True),
        "seed of the data": str(launch.data_seed),
        "weights": checkpoints.weights_hash(one_pass.backend.state_dict()["state_dict"]),
        "number of events": str(events.events),
        "event files": " ".join(file.digest() for file in files),
    }


def _make_part(one_pass: Pass, stop: Stop, folder: Path, identity: dict[str, str]) -> None:
    """Make the steps of this instance and write its part, ``pass.json`` last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(_collector(one_pass, folder))
        one_pass.loop(stop, collector, lambda step: None)
    if collector is not None:
        from cosmictagger.results import writer

        writer.save_part(writer.Part(folder, collector.tally, collector.candidates))
    passed = one_pass.passed(stop.signal)
    content = {"identity": identity, **dataclasses.asdict(passed)}
    atomic.write_text(folder / _PASS, json.dumps(content))


def _collector(one_pass: Pass, folder: Path) -> Any:
    if not one_pass.is_inference:
        return contextlib.nullcontext()
    from cosmictagger.results import Collector

    return Collector(
        folder,
        size=one_pass.events.stored_size,
        downsample=one_pass.launch.config.data.downsample,
        displays=one_pass.mode.displays,
    )


def _read_part(folder: Path, identity: dict[str, str], *, stopped: bool = False) -> Passed | None:
    """Return the part in a folder; None if it is of another pass, or none, or ended early."""
    try:
        content = json.loads((folder / _PASS).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if content.pop("identity", None) != identity:
        return None
    if content["signal"] is not None and not stopped:
        return None
    steps = [Step(**step) for step in content.pop("steps")]
    return Passed(steps=steps, proof=Proof(**content.pop("proof")), **content)


def _join(one_pass: Pass, folders: Sequence[Path], identity: dict[str, str]) -> int | None:
    """Write the files of the whole pass, and delete the parts when all are there."""
    launch, parts = one_pass.launch, []
    for index, folder in enumerate(folders):
        part = _read_part(folder, identity, stopped=True)
        if part is None:
            raise InstanceError(
                f"Instance {index} has made its part of the pass, but instance 0 finds none in "
                f"{folder}. All instances need one output_dir, on a file system that they share.",
                instance=index,
            )
        parts.append(part)
    passed = _joined(parts)
    report = (
        _write_joined(one_pass, folders, passed) if one_pass.is_inference and passed.steps else None
    )
    with Records(launch) as records:
        for step in passed.steps:
            records.add(step)
    end_pass(launch, one_pass.backend, passed, report)
    shutil.rmtree(launch.folder / _FOLDER)
    return passed.signal


def _joined(parts: Sequence[Passed]) -> Passed:
    """Return the whole pass; its steps are in order, whoever made them."""
    steps = sorted((step for part in parts for step in part.steps), key=lambda step: step.index)
    rounds = max(len(part.seconds) for part in parts)
    slowest = [
        max(part.seconds[turn] for part in parts if turn < len(part.seconds))
        for turn in range(rounds)
    ]
    splits = [part.split for part in parts if part.split]
    names = dict.fromkeys(name for split in splits for name in split)
    split = {name: float(np.mean([split.get(name, 0.0) for split in splits])) for name in names}
    signals = (part.signal for part in parts if part.signal is not None)
    return Passed(steps, _proof(parts), slowest, split, next(signals, None))


def _proof(parts: Sequence[Passed]) -> Proof:
    """Return where the steps of all instances ran; those that made none do not count."""
    proofs = [part.proof for part in parts if part.steps] or [parts[0].proof]
    compile_seconds = [
        proof.compile_seconds for proof in proofs if proof.compile_seconds is not None
    ]

    def all_of(name: str) -> Any:
        values = dict.fromkeys(getattr(proof, name) for proof in proofs)
        return ", ".join(map(str, values)) if len(values) > 1 else next(iter(values))

    return dataclasses.replace(
        proofs[0],
        target=all_of("target"),
        device=all_of("device"),
        executable=all_of("executable"),
        compile_seconds=max(compile_seconds, default=None),
        evaluation_steps=sum(proof.evaluation_steps for proof in proofs),
    )


def _write_joined(one_pass: Pass, folders: Sequence[Path], passed: Passed) -> Path:
    from cosmictagger.results import writer

    loaded = [writer.load_part(folder) for folder in folders]
    writer.join_predictions(loaded, one_pass.launch.folder / writer.PREDICTIONS)
    return _write_report(one_pass, *writer.join_parts(loaded), passed, {"instances": len(folders)})


def _write_report(
    one_pass: Pass, tally: Tally, candidates: Candidates, passed: Passed, more: dict[str, object]
) -> Path:
    from cosmictagger.results.writer import image_size_text, write_files

    size, downsample = one_pass.events.stored_size, one_pass.launch.config.data.downsample
    return write_files(
        one_pass.launch.folder,
        tally,
        candidates.events(),
        dataclasses.asdict(passed.proof),
        {**one_pass.settings(), **more, "image size": image_size_text(size, downsample)},
        sys.stderr.isatty(),
    )


_SYNTHETIC_STEPS = 500


def infer(launch: Launch) -> int | None:
    """Run the network over the events, from ``mode.start_index`` on.

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
        return one_pass.run() if instances.count == 1 else run_shared(one_pass)


class Pass:
    """A pass over the events, or this instance's part of it.

    Attributes:
        steps: those made so far.
    """

    def __init__(self, launch: Launch, backend: Backend, events: BatchStream):
        self.launch, self.backend, self.events = launch, backend, events
        self.mode = launch.config.mode
        self.timings = Timings()
        self.steps: list[Step] = []

    @property
    def is_inference(self) -> bool:
        """True in mode inference, which writes files of results."""
        return self.mode.name is ModeKind.inference

    def run(self) -> int | None:
        """Make the pass and everything that belongs to it."""
        report = None
        with Records(self.launch) as records, Stop() as stop:
            with _collector(self, self.launch.folder) as results:
                self.loop(stop, results, records.add)
            passed = self.passed(stop.signal)
            if results is not None:
                report = _write_report(self, results.tally, results.candidates, passed, {})
        end_pass(self.launch, self.backend, passed, report)
        return stop.signal

    def loop(self, stop: Stop, results: Any, note: Callable[[Step], None]) -> None:
        """Make the steps of this instance.

        Args:
            stop: ends it after the step under way.
            results: takes the scores; None where nobody wants them.
            note: takes each step.
        """
        batches = sources.beginning_at(self.events, self.mode.start_index)
        indices = sources.turns(self.events, self.mode.start_index, self._total())
        first = self.launch.instances.is_first
        with Bar(len(indices), self.mode.name.name, shown=first) as bar:
            for index in indices:
                if stop.signal is not None:
                    break
                with self.timings.iteration(index):
                    step = self._step(index, batches, results)
                    self.steps.append(step)
                    note(step)
                bar.step(step.shown)

    def passed(self, signal: int | None) -> Passed:
        """Return what the pass has come to."""
        proof = self.launch.prove(self.backend)
        self.timings.save(self.launch.folder / "profiles", self.launch.instances.index)
        return Passed(self.steps, proof, self.timings.iterations, self.timings.split(), signal)

    def settings(self) -> dict[str, object]:
        """Return the run's settings that the report lists."""
        config, network = self.launch.config, self.backend.network
        count = sum(value.numel() for value in network.parameters())
        return {
            "run": config.run.id,
            "network": f"{config.network.name}, {count:,} parameters",
            **self.launch.weights_said,
            "events": sources.described(config),
        }

    def _total(self) -> int:
        """Return batches of all instances together."""
        size, start = self.events.batch_size, self.mode.start_index
        whole = math.ceil(self.events.events / size) - start // size
        iterations = self.launch.config.run.iterations
        if iterations is None and not isinstance(self.events, EventLoader):
            iterations = _SYNTHETIC_STEPS
        return max(1, whole if iterations is None else min(iterations, whole))

    def _step(self, index: int, batches: Iterator[Batch], results: Any) -> Step:
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
        if steps == 1:
            self.launch.prove(self.backend)
        self._check(batch, result)
        with self.timings.part("metrics"):
            values, rows = _measured(batch, result)
        if results is not None:
            with self.timings.part("summary"):
                labelled = None if batch.label is None else rows
                results.add(batch, result.logits, labelled, self._particles(batch))
        speed = len(batch) / (time.perf_counter() - started)
        step = Step(index, batch.entries, values, rows, speed)
        if index % self.mode.logging_iteration == 0:
            log_step("ana", index, step.shown)
        return step

    def _check(self, batch: Batch, result: StepResult) -> None:
        for row, entry in enumerate(batch.entries):
            if not all(bool(plane[row].isfinite().all()) for plane in result.logits):
                ids = tuple(int(number) for number in batch.event_ids[row])
                raise DataError(
                    f"Scores of event {entry} (run, subrun, event {ids}) are no numbers. Look at "
                    "that event and at the weights, or choose run.precision=float32."
                )

    def _particles(self, batch: Batch) -> list[Any] | None:
        if not isinstance(self.events, EventLoader):
            return None
        places = [self.events.locate(entry) for entry in batch.entries]
        return [file.particles(event) for file, event in places]


def _measured(
    batch: Batch, result: StepResult
) -> tuple[dict[str, float], Sequence[dict[str, float]]]:
    """Return metrics of a batch and of each of its events; none without labels."""
    if batch.label is None:
        return {}, []
    rows = measures.per_event(result.logits, batch.label)
    loss = float(result.loss)  # type: ignore[arg-type]  there are labels
    return {"loss": loss, **measures.compute(result.logits, batch.label)}, rows
