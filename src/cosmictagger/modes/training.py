"""Training loop: batches, learning rate, validation, checkpoints; synchronization of instances."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abele.collectives.meeting import SECRET
from abele.storage import atomic
from cosmictagger import checkpoints, measures, sources
from cosmictagger.backends import Backend, StepResult
from cosmictagger.config.checks import plain
from cosmictagger.config.composing import Config
from cosmictagger.config.keys import ComputeMode, ModeKind
from cosmictagger.data.larcv import PLANES, Frame
from cosmictagger.data.loader import Batch, BatchStream
from cosmictagger.errors import BackendError, ConfigError, DataError, TrainingError
from cosmictagger.instances import Instances
from cosmictagger.launch import Launch, launched
from cosmictagger.measures import EVENT_CLASSES
from cosmictagger.modes.schedule import Schedule
from cosmictagger.modes.stopping import SIGNALS, Stop
from cosmictagger.recording import (
    IMAGES_EVERY,
    Bar,
    Summaries,
    Table,
    Timings,
    closing_lines,
    log_step,
    logger,
    progress,
    split_line,
    throughput,
    warn_once,
)
from cosmictagger.results.writer import write_training

# Poprun and torchrun say how often they have restarted a run, and give each run a value of its own.
_RESTARTS, _OF_TORCHRUN = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"


def open_events(
    launch: Launch, stack: contextlib.ExitStack
) -> tuple[BatchStream, BatchStream | None]:
    """Open the training and validation events, checked to be the same on all instances."""
    config, instances = launch.config, launch.instances
    with instances.together("the generated events"):
        if instances.is_first:
            sources.prepare(config)
    with instances.together("the events"):
        events = stack.enter_context(sources.training(config, launch.data_seed, instances))
        aux = sources.validation(config, instances)
        if aux is not None:
            stack.enter_context(aux)
    facts = {"events to train on": events.events, "images": events.image_size}
    facts["events to validate on"] = 0 if aux is None else aux.events
    instances.agree("the events", facts)
    return events, aux


def steps_to_make(launch: Launch, step: int, schedule: Schedule) -> int:
    """Return the number of steps to run: ``run.iterations``, or the rest of ``run.epochs``."""
    run, launcher = launch.config.run, _launcher()
    if run.epochs is not None:
        until = schedule.step_of(run.epochs)
        if until <= step:
            warn_once(
                f"Nothing is trained: run.epochs={run.epochs} counts from the start of the run, "
                f"which has made {schedule.epoch(step):.4g}. Ask for more of them."
            )
    else:
        assert run.iterations is not None  # settled
        until = step + run.iterations
    goal = launch.record.before.get("goal", {})
    if os.environ.get(_RESTARTS, "0") != "0" and goal.get("launcher") == launcher:
        until = int(goal["step"])
    until = launch.instances.from_first("the last step", until)
    with launch.instances.together("the record"):
        launch.record.update({"goal": {"step": until, "launcher": launcher}})
    return max(0, until - step)


def _launcher() -> str:
    """Return a hash of the launcher's secret, which identifies a run of poprun or torchrun."""
    secret = os.environ.get(SECRET) or os.environ.get(_OF_TORCHRUN, "")
    return hashlib.sha256(secret.encode()).hexdigest()[:16]


def mean_loss(
    instances: Instances, result: StepResult, signal: int | None
) -> tuple[float, int | None]:
    """Return the loss averaged over all instances, which have equally many images.

    Returns:
        The loss, and a signal that has come to any instance, for all to obey at the same step.
    """
    assert result.loss is not None  # Backend.train_step asks for labels
    loss = float(result.loss)
    if instances.count == 1:
        return loss, signal
    total, *numbers = instances.total([loss, *(signal == each for each in SIGNALS)])
    received = next((each for each, n in zip(SIGNALS, numbers, strict=True) if n), None)
    return total / instances.count, received


def all_counts(
    instances: Instances, logits: Sequence[torch.Tensor], label: torch.Tensor, size: int
) -> measures.Counts:
    """Return the ``measures.counts`` of the images of all instances, as if of one batch.

    Args:
        instances: all processes of the run.
        logits: of this instance; see ``measures.compute``.
        label: of this instance.
        size: the maximum number of images of an instance.
    """
    counts = torch.from_numpy(measures.counts(logits, label))
    joined = _all_rows(instances, counts, size, -1)
    return joined[joined[:, 0, 0, 0] >= 0].numpy()


def all_heads(
    instances: Instances, result: StepResult, batch: Batch, frame: Frame, size: int
) -> measures.Table | None:
    """Return the ``measures.of_heads`` of the events of all instances; None without heads."""
    if batch.event_label is None or batch.vertex is None:
        return None
    heads, truth = (result.event_label, result.vertex), (batch.event_label, batch.vertex)
    table = torch.from_numpy(measures.of_heads(*heads, *truth, frame.size))
    return _all_rows(instances, table, size, torch.nan).numpy()


def _all_rows(instances: Instances, rows: Tensor, size: int, missing: float) -> Tensor:
    """Return the rows of all instances, each filled up to ``size``; alone the rows themselves."""
    if instances.count == 1:
        return rows
    filling = rows.new_full((size - len(rows), *rows.shape[1:]), missing)
    return instances.rows(torch.cat([rows, filling]))


def of_nothing(batch: Batch, names: Sequence[str]) -> StepResult:
    """Return the step result of an instance without images left, by the names of loss parts."""
    empty = torch.zeros(0, 3, *batch.image.shape[2:])
    parts = dict.fromkeys(names if len(names) > 1 else (), torch.tensor(torch.nan))
    return StepResult(
        torch.tensor(torch.nan),
        (empty,) * PLANES,
        event_label=torch.zeros(0, len(EVENT_CLASSES)) if "event_label" in parts else None,
        vertex=(torch.zeros(0, 3, 1, 1),) * PLANES if "vertex/detection" in parts else None,
        parts=parts,
    )


def compare_weights(instances: Instances, backend: Backend, step: int) -> None:
    """Raise unless all instances have bitwise equal weights after training."""
    if instances.count > 1:
        weights_hash = checkpoints.weights_hash(dict(backend.network.named_parameters()))
        instances.agree(
            "what was trained", {f"the hash of the weights after step {step}": weights_hash}
        )


_FORMAT = 1  # of checkpoints


def train(launch: Launch) -> int | None:
    """Train for another ``run.iterations`` steps, or until ``run.epochs`` are completed.

    Returns:
        The number of the signal that ended it early, or None.
    """
    with contextlib.ExitStack() as stack:
        events, aux = open_events(launch, stack)
        backend = launch.backend(events.image_size, training=True)
        stack.callback(backend.close)
        return Training(launch, backend, events, aux).run()


class Training:
    """The training loop of one launch.

    Args:
        launch: configuration, folder and record.
        backend: takes the steps.
        events: endless batches with labels.
        aux: batches to validate on, or None.

    Attributes:
        step: updates made since the first launch of the run.
    """

    def __init__(
        self, launch: Launch, backend: Backend, events: BatchStream, aux: BatchStream | None
    ):
        self.launch, self.backend, self.events, self.aux = launch, backend, events, aux
        self.config, self.mode = launch.config, launch.config.mode
        self.instances = launch.instances
        self.images = events.step_size
        self.schedule = Schedule(
            self.mode.optimizer.learning_rate,
            self.images,
            events.events,
            settings=self.mode.optimizer.lr_schedule,
            epochs=self.config.run.epochs,
        )
        self.step = self._saved = 0
        self.timings = Timings()
        self._restore()
        self._first = self.step
        self._batches = sources.endless(events)
        self._aux_batches = None if aux is None else sources.endless(aux)
        paths = {n: launch.folder / f"{n}_metrics.csv" for n in ("train", "test")}
        first = self.instances.is_first
        self._tables = {n: Table(path if first else None) for n, path in paths.items()}
        self._summaries: dict[str, Summaries] = {}
        self._shown = time.perf_counter()
        self._latest: dict[str, float] = {}
        self._signal: int | None = None

    # -- going on ----------------------------------------------------------------------------

    def _restore(self) -> None:
        content = self.launch.weights()
        if content is None:
            logger.info("No checkpoint: training starts from random weights.")
            return
        checkpoints.check_fits(content["state_dict"], self.backend.network, content["path"])
        try:
            self.backend.load_state_dict(content)
        except BackendError as error:
            # Weights that were named on purpose may go on with another optimizer.
            if not self.mode.weights_location:
                raise
            warn_once(f"The optimizer begins anew. {error}")
        self.step = self._saved = int(content["global_step"])
        usual = self.step * self.images
        surplus = int(content.get("images", usual)) - usual
        self.schedule = dataclasses.replace(self.schedule, surplus=surplus)
        logger.info(f"Going on after step {self.step} from {content['path']}.")
        self._compare_rates(content.get("scheduler"))
        self._restore_data(content)
        random = content.get("random")
        if random is not None:
            torch.set_rng_state(random["torch"])
            if random["cuda"] and torch.cuda.is_available():
                torch.cuda.set_rng_state_all(random["cuda"])

    def _compare_rates(self, before: Any) -> None:
        """Log that the run goes on with another learning rate than that of the checkpoint."""
        rate, (earlier, *_) = self.schedule(self.step), (before or {}).get("_last_lr") or [None]
        if earlier is not None and not math.isclose(rate, earlier, rel_tol=1e-6):
            logger.info(
                f"The learning rate is now {rate:.4g}; the settings of the checkpoint gave "
                f"{float(earlier):.4g}."
            )

    def _restore_data(self, content: Mapping[str, Any]) -> None:
        for name, loader in (("loader", self.events), ("aux_loader", self.aux)):
            state = content.get(name)
            if loader is None or state is None:
                continue
            try:
                loader.load_state_dict(state)
            except DataError as error:
                # Weights that were named on purpose may go on with other data.
                if not self.mode.weights_location:
                    raise
                warn_once(f"{name} starts at its first batch. {error}")

    def content(self) -> dict[str, Any]:
        """Return the contents of a checkpoint: weights, optimizer and positions."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {
            "format": _FORMAT,
            "global_step": self.step,
            "images": self.schedule.images(self.step),
            **self.backend.state_dict(),
            "scheduler": {"last_epoch": self.step, "_last_lr": [self.schedule(self.step)]},
            "loader": self.events.state_dict(),
            "aux_loader": None if self.aux is None else self.aux.state_dict(),
            "random": {"torch": torch.get_rng_state(), "cuda": cuda},
            "network": plain(self.config.network),
            "compute_mode": self.config.run.compute_mode.name,  # type: ignore[union-attr]
            "precision": self.config.run.precision.name,
        }

    def _save(self) -> None:
        with self.timings.part("checkpoint"), self.instances.together("a checkpoint"):
            if self.instances.is_first:
                path = self.launch.checkpoints.save(self.step, self.content())
                logger.info(f"Checkpoint {path}")
                write_training(self.launch, self.backend.proof(), self.step, self.events, self.aux)
                self.launch.record.update({"proof": dataclasses.asdict(self.backend.proof())})
        self._saved = self.step

    # -- the loop ----------------------------------------------------------------------------

    def run(self) -> int | None:
        """Run the steps of this launch with validation, logs and checkpoints."""
        total = steps_to_make(self.launch, self.step, self.schedule)
        end = self.schedule.end()
        if end is not None and end < self.step + total:
            logger.info(
                f"The schedule of the learning rate ends with step {end}; the "
                f"{self.step + total - max(end, self.step)} steps after that have its decay_floor, "
                f"{self.schedule(end)}."
            )
        on = self.config.run.saver and self.instances.is_first
        for name in ("train", "test") if self.aux is not None else ("train",):
            self._summaries[name] = Summaries(self.launch.folder / name, self.step, on)
        try:
            alone = self.instances.count == 1
            with Stop(alone) as stop, Bar(total, "train", shown=self.instances.is_first) as bar:
                for index in range(total):
                    if alone:
                        self._signal = stop.signal
                    if self._signal is not None:  # of any instance, before the last step
                        break
                    with self.timings.iteration(index):
                        self._iteration(stop)
                    bar.step(self._latest)
                self._end(self._signal)
            return self._signal
        finally:
            for summaries in self._summaries.values():
                summaries.close()

    def _iteration(self, stop: Stop) -> None:
        every = self.config.run.aux_iterations
        by_steps = self._aux_batches is not None and self.config.run.epochs is None
        if by_steps and self.step and self.step % every == 0:
            self._validate([next(self._aux_batches)])  # type: ignore[arg-type]  by_steps
        with self.timings.part("io"):
            batch = self._next()
        rate = self.schedule(self.step)
        with self.timings.part("train"):
            result = self._profiled(batch, rate) if self.config.run.profile else None
            result = result or self.backend.train_step(batch, rate)
        for name, seconds in result.seconds.items():
            self.timings.add(name, seconds)
        result = self._checked(batch, result, stop)
        self._note(batch, result, rate)
        self.step += 1
        steps = self.step - self._first
        if self.backend.training_steps != steps:
            raise BackendError(
                f"{steps} training steps were made, but {self.backend.training_steps} went through "
                f"the backend of {self.config.run.compute_mode.name} mode."  # type: ignore[union-attr]
            )
        self.launch.prove(self.backend)
        stop.is_underway = True
        self._end_epoch(stop)
        if self.step % self.mode.checkpoint_iteration == 0:
            self._save()

    def _next(self) -> Batch:
        batch, problem = None, None
        try:
            batch = next(self._batches)
        except DataError as error:
            problem = DataError(f"Training stops at step {self.step}: {error}")
        if not any(self.instances.total([problem is not None])):
            assert batch is not None  # or there is a problem
            return batch
        if self.step > self._saved:
            self._save()
        self.instances.check("the next events", problem)
        raise problem or DataError("Another instance cannot read its events.")

    def _profiled(self, batch: Batch, rate: float) -> StepResult:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it prints when it starts and stops
        with torch.profiler.profile() as profile:
            result = self.backend.train_step(batch, rate)
        folder = self.launch.folder / "profiles"
        folder.mkdir(exist_ok=True)
        suffix = "" if self.instances.is_first else f"-{self.instances.index}"
        name = f"timeline_{self.step}{suffix}.json"
        profile.export_chrome_trace(str(folder / name))
        return result

    def _checked(self, batch: Batch, result: StepResult, stop: Stop) -> StepResult:
        """Return the result with the loss averaged over all instances; raise if not finite."""
        loss, self._signal = mean_loss(self.instances, result, stop.signal)
        if math.isfinite(loss):
            return dataclasses.replace(result, loss=torch.tensor(loss, dtype=torch.float64))
        problem = self._not_finite(batch, result)
        self.instances.check("the loss", problem)
        raise problem or TrainingError(f"The loss of step {self.step} is {loss}.")

    def _not_finite(self, batch: Batch, result: StepResult) -> TrainingError | None:
        """Return the error to raise if this instance's loss is not finite, else None."""
        assert result.loss is not None
        if torch.isfinite(result.loss):
            return None
        finite = torch.stack([torch.isfinite(p).flatten(1).all(1) for p in result.logits]).all(0)
        row = int(finite.int().argmin())  # the first that is not, or the first
        ids = tuple(int(number) for number in batch.event_ids[row])
        restart_point = (
            f"checkpoint after step {self._saved}" if self._saved else "start: no checkpoint yet"
        )
        return TrainingError(
            f"The loss of step {self.step} is {float(result.loss)}. The first event of it is "
            f"{batch.entries[row]} (run, subrun, event {ids}). Nothing is saved; the last good "
            f"weights are those of the {restart_point}. Look at that event, lower "
            "mode.optimizer.learning_rate, or choose another run.precision."
        )

    def _end_epoch(self, stop: Stop) -> None:
        """Validate on the whole file, if the run counts epochs and one has ended."""
        epochs, done = self.config.run.epochs, math.floor(self.schedule.epoch(self.step))
        if epochs is None or done == math.floor(self.schedule.epoch(self.step - 1)):
            return
        logger.info(f"Epoch {done} of {epochs} ends with step {self.step}.")
        if self.aux is not None:
            self.aux.set_epoch(0)
            first = self.instances.is_first
            batches = progress(self.aux, f"Validating after epoch {done}") if first else self.aux
            self._validate(batches, stop)

    def _validate(self, batches: Iterable[Batch], stop: Stop | None = None) -> None:
        """Evaluate batches and record loss and metrics over all their events.

        A signal ends it, and nothing is recorded, where ``stop`` is that of a single process.
        """
        with self.timings.part("val"):
            assert self.aux is not None
            self.backend.share_statistics()
            losses, tables, heads, shown = [], [], [], None
            names, evaluate = self.backend.loss.names, self.backend.evaluate_step
            for batch in batches:
                if stop is not None and stop.signal is not None and self.instances.count == 1:
                    logger.info(f"The validation after step {self.step} is given up.")
                    return
                with self.instances.together("a validation"):
                    result = evaluate(batch) if len(batch) else of_nothing(batch, names)
                assert result.loss is not None  # the aux file has labels, or it is not opened
                assert batch.label is not None
                losses.append(
                    self.instances.mean(measures.losses(result.loss, result.parts), len(batch))
                )
                size = self.aux.batch_size
                tables.append(all_counts(self.instances, result.logits, batch.label, size))
                heads.append(all_heads(self.instances, result, batch, self.aux.frame, size))
                shown = shown or (batch, result)
        weights = list(map(len, tables))
        values = {
            name: float(np.average([each[name] for each in losses], weights=weights))
            for name in losses[0]
        }
        values |= measures.of_batch(np.concatenate(tables))
        if heads[0] is not None:
            values |= measures.head_means(np.concatenate(heads))
        self._tables["test"].add(self.step, values)
        log_step("test", self.step, values)
        self._summaries["test"].scalars(self.step, values)
        if shown is not None:
            self._draw("test", *shown)

    def _note(self, batch: Batch, result: StepResult, rate: float) -> None:
        logged = self.step % self.mode.logging_iteration == 0
        summarised = self.step % self.mode.summary_iteration == 0
        now = time.perf_counter()
        passed, self._shown = now - self._shown, now
        speeds = {
            "global_step_per_sec": 1 / passed,
            "images_per_second": self.images / passed,
            "io_fetch_time": self.timings.seconds("io"),
            "step_time": self.timings.seconds("train"),
        }
        values = {"loss": float(result.loss)}  # type: ignore[arg-type]
        if (logged or summarised) and batch.label is not None:
            with self.timings.part("metrics"):
                losses = measures.losses(result.loss, result.parts)
                values |= self.instances.mean(losses, len(batch))
                size = len(batch)
                counts = all_counts(self.instances, result.logits, batch.label, size)
                values |= measures.of_batch(counts)
                heads = all_heads(self.instances, result, batch, self.events.frame, size)
                values |= {} if heads is None else measures.head_means(heads)
        self._latest = {**self._latest, **values, **speeds}
        if logged:
            with self.timings.part("log"):
                row = {**values, **speeds, "learning_rate": rate}
                self._tables["train"].add(self.step, row)
                log_step("train", self.step, row)
        if summarised:
            with self.timings.part("summary"):
                scalars = {**values, **speeds, "learning_rate": rate}
                self._summaries["train"].scalars(self.step, scalars)
                self._draw("train", batch, result)

    def _draw(self, saver: str, batch: Batch, result: StepResult) -> None:
        due = not self.mode.no_summary_images and self.step % IMAGES_EVERY == 0
        if due and batch.label is not None:
            self._summaries[saver].images(self.step, result.logits, batch.label)

    def _end(self, signal: int | None) -> None:
        if self.step > self._saved:
            self._save()
        profiles = self.launch.folder / "profiles"
        with self.instances.together("the profiles"):
            self.timings.save(profiles, self.instances.index)
            if self.instances.is_first:
                text = json.dumps(plain(self.config), indent=1) + "\n"
                atomic.write_text(profiles / "args.json", text)
        times = self.timings.iterations
        speed = throughput(times, self.images)
        split = self.timings.split()
        values = {
            "steps": self.step,
            "last": self._latest,
            "images_per_second": speed,
            "seconds_per_iteration": split,
        }
        compare_weights(self.instances, self.backend, self.step)
        self.launch.prove_end(self.backend, f"after step {self.step}", values)
        if signal is not None:
            self.launch.record.end(f"stopped by signal {signal}")
        for line in closing_lines(times, self.images):
            logger.info(line)
        if split:
            logger.info(split_line(split))


def compile_program(config: Config) -> None:
    """Compile the training program of a configuration into its output folder."""
    if config.run.compute_mode is not ComputeMode.RDU or config.mode.name is not ModeKind.train:
        raise ConfigError(
            "compile makes the file that training in RDU mode loads. Add run.compute_mode=RDU; "
            "other modes compile by themselves at their first step."
        )
    with launched(config) as launch, contextlib.ExitStack() as stack:
        from cosmictagger.backends.rdu import RduBackend

        seed, instances = launch.data_seed, launch.instances
        events = stack.enter_context(sources.training(config, seed, instances))
        backend = launch.backend(events.image_size, training=True)
        assert isinstance(backend, RduBackend)
        logger.info(f"Compiled {backend.compile(events.image_size)}")
