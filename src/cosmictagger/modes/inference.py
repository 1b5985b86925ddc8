"""``mode=inference`` and ``mode=evaluate``: every event of a file once, in order.

Inference writes predictions, event displays and a report; evaluate writes numbers only. Several
instances share the batches out; `cosmictagger.modes.sharing` joins what each of them has found out.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cosmictagger import sources
from cosmictagger.backends import Backend, StepResult
from cosmictagger.config.mode import ModeKind
from cosmictagger.data import Batch, EventLoader
from cosmictagger.data.loader import BatchStream
from cosmictagger.errors import BackendError, DataError
from cosmictagger.launch import Launch
from cosmictagger.measures import metrics
from cosmictagger.modes import passes, sharing
from cosmictagger.modes.passes import Passed, Step
from cosmictagger.modes.stopping import Stop
from cosmictagger.recording.progress import Bar
from cosmictagger.recording.records import log_step
from cosmictagger.recording.timings import Timings

_SYNTHETIC_STEPS = 500


def infer(launch: Launch) -> int | None:
    """Run the network over the events, from ``mode.start_index`` on.

    Args:
        launch: a settled configuration with folder and record.

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
        return one_pass.run() if instances.count == 1 else sharing.run(one_pass)


class Pass:
    """One pass over the events, or this instance's part of it.

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
        """Whether there are files of results."""
        return self.mode.name is ModeKind.inference

    def run(self) -> int | None:
        """Make the pass and everything that belongs to it."""
        with contextlib.ExitStack() as stack:
            records = stack.enter_context(passes.Records(self.launch))
            stop = stack.enter_context(Stop())
            results = stack.enter_context(self._results()) if self.is_inference else None
            self.loop(stop, results, records.add)
        report = None if results is None else results.files.report
        passes.end(self.launch, self.backend, self.passed(stop.signal), report)
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
        """Return what the report names besides the proof."""
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

    def _results(self) -> Any:
        """Return the writer of files, which gives them their names when the pass has ended well."""
        from cosmictagger.results import ResultsWriter

        return ResultsWriter(
            self.launch.folder,
            size=self.events.stored_size,
            downsample=self.launch.config.data.downsample,
            proof=self.backend.proof,
            displays=self.mode.displays,
            settings=self.settings(),
            progress=sys.stderr.isatty(),
        )

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
    rows = metrics.per_event(result.logits, batch.label)
    loss = float(result.loss)  # type: ignore[arg-type]  there are labels
    return {"loss": loss, **metrics.compute(result.logits, batch.label)}, rows
