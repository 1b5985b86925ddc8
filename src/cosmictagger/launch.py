"""Setup shared by all modes: folder, log, record, seeds, network and weights."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from abele.storage.files import exclusive_file, prune
from cosmictagger import __version__, backends, checkpoints, instances, models, sources
from cosmictagger.backends import Backend, Proof, Settings
from cosmictagger.config.checks import dump, look_up, minibatch, plain, settle
from cosmictagger.config.composing import Config, leaves
from cosmictagger.config.keys import ComputeMode, DataFormat, DataKind, ModeKind
from cosmictagger.errors import ConfigError, CosmicTaggerError
from cosmictagger.instances import Instances
from cosmictagger.measures import Loss
from cosmictagger.recording import (
    LOG,
    RunRecord,
    entries_of,
    log_to_file,
    logger,
    logging_to,
    warn_once,
)

_TITLES = {
    ModeKind.train: "Training",
    ModeKind.inference: "Inference",
    ModeKind.iotest: "IO Test",
}
_RANDOM_WEIGHTS = "random"
_EXECUTABLES_BYTES = 2 * 10**9


@dataclasses.dataclass
class Launch:
    """A running launch: configuration, output folder, record, seeds and instances.

    Attributes:
        config: settled.
        folder: of everything it writes.
        record: its ``run.json``.
        data_seed: of the order of events.
        seed: of the first weights.
        instances: the processes that share it; what is logged and written, the first one does.
        weights_said: which weights inference uses, in words.
    """

    config: Config
    folder: Path
    record: RunRecord
    data_seed: int
    seed: int
    instances: Instances = dataclasses.field(default_factory=Instances)
    weights_said: dict[str, str] = dataclasses.field(default_factory=dict)
    _last_state: object = ()
    _last_line: str = ""

    @property
    def checkpoints(self) -> checkpoints.Checkpoints:
        """The checkpoints of this run."""
        return checkpoints.Checkpoints(self.folder / "checkpoints")

    @property
    def minibatch(self) -> int:
        """Images per forward pass of each replica of this instance."""
        return minibatch(self.config, self.instances.count)

    def backend(self, image_size: tuple[int, int], *, training: bool) -> Backend:
        """Build the network and the backend of the run's compute mode."""
        config = self.config
        rows, columns = (edge << config.data.downsample for edge in image_size)
        models.check_image_size(config.network, image_size, (rows, columns))
        torch.manual_seed(self.seed)
        network = models.build(config.network, image_size)
        count = sum(value.numel() for value in network.parameters())
        logger.info(f"Network {config.network.name}: {count:,} parameters.")
        optimizer = config.mode.optimizer
        backend = backends.create(
            network,
            Loss(optimizer.loss_balance_scheme, config.network),
            Settings(
                mode=config.run.compute_mode,  # type: ignore[arg-type]  settled
                precision=config.run.precision,
                micro_batch=self.minibatch,
                replicas=config.run.num_replicas,
                instances=self.instances,
                broadcast_buffers=config.run.broadcast_buffers,
                optimizer=optimizer if training else None,
                compile=config.framework.compile,
                channels_last=config.data.data_format is DataFormat.channels_last,
                folder=str(self.folder),
                profile=config.run.profile,
                executables=self._executables(),
            ),
        )
        self.prove(backend)
        return backend

    def _executables(self) -> str | None:
        """Return the folder of compiled programs, None for none; bound the size of the default."""
        named = self.config.run.executable_cache or os.environ.get("POPTORCH_CACHE_DIR")
        if not named:
            named = str(sources.cache_folder() / "executables")
            prune(Path(named).glob("*.abele"), _EXECUTABLES_BYTES)
        return None if named.lower() in ("false", "no", "0") else named

    def prove(self, backend: Backend) -> None:
        """Write to record and log where the backend runs, unless that is as in the last call."""
        state, self._last_state = self._last_state, backend.what_runs()
        if state == self._last_state:
            return
        proof = backend.proof()
        if proof.line() != self._last_line:
            self._last_line = proof.line()
            logger.info(self._last_line)
        self.record.update({"proof": dataclasses.asdict(proof)})

    def prove_end(
        self, backend: Backend, when: str, values: dict[str, Any], proof: Proof | None = None
    ) -> None:
        """Record and log final results, the hash of the weights and evidence of the device.

        Args:
            backend: at the end of its steps.
            when: what the weights are after, in words.
            values: further entries for the record.
            proof: of all instances; default that of ``backend``.
        """
        proof = proof or backend.proof()
        weights_hash = checkpoints.weights_hash(backend.state_dict()["state_dict"])
        self.record.update(
            {**values, "weights_hash": weights_hash, "proof": dataclasses.asdict(proof)}
        )
        logger.info(f"Weights {when}: {weights_hash}")
        logger.info(f"Proof: {proof.line()}; {proof.counts()}")

    def weights(self) -> dict[str, Any] | None:
        """Return the checkpoint to start from: the configured one or the run's latest, or None.

        The first instance reads it and gives it to the others.
        """
        content = None
        with self.instances.together("the checkpoint"):
            path = self._weights_file() if self.instances.is_first else None
            if path is not None:
                content = checkpoints.load(path)
                content["state_dict"] = checkpoints.network_weights(content)
                content["path"] = str(path)
        return self.instances.tensors_from_first("the checkpoint", content)

    def find_files(self) -> None:
        """Find the events and weights that are asked for, before anything else is done or said."""
        with self.instances.together("the files that are asked for"):
            if self.instances.is_first:
                if self.config.data.name is DataKind.real:
                    sources.in_order(self.config, self.data_seed, self.instances).close()
                self._weights_file()

    def _weights_file(self) -> Path | None:
        """Return the checkpoint to start from; None if there is none and none is needed."""
        mode = self.config.mode
        if mode.name is ModeKind.iotest or mode.weights_location == _RANDOM_WEIGHTS:
            return None
        if mode.weights_location:
            return checkpoints.locate(mode.weights_location)
        path = self.checkpoints.latest()
        if path is None and mode.name is ModeKind.inference:
            raise ConfigError(
                f"mode={mode.name.name} needs trained weights, but there are none in "
                f"{self.checkpoints.folder}. Train with this run.id first, name others with "
                "mode.weights_location=FOLDER, or ask for untrained ones with "
                "mode.weights_location=random."
            )
        return path

    def load_for_inference(self, backend: Backend) -> None:
        """Load the weights of a checkpoint into the network."""
        content = self.weights()
        if content is not None:
            checkpoints.check_fits(content["state_dict"], backend.network, content["path"])
            backend.load_state_dict({"state_dict": content["state_dict"]})
            step = content.get("global_step")
            self.weights_said["weights"] = f"after step {step}, from {content['path']}"
            logger.info(f"Weights {self.weights_said['weights']}.")
        else:
            self.weights_said["weights"] = "random: nothing has been trained"
            warn_once(f"Weights are {self.weights_said['weights']}.")


@contextlib.contextmanager
def launched(config: Config) -> Iterator[Launch]:
    """Open the launch of a configuration with folder, log and record; close it on exit.

    Args:
        config: changed in place by ``settle``.
    """
    for name, value in config.framework.environment_variables.items():
        os.environ[name] = value
    notes = settle(config)
    with contextlib.ExitStack() as stack:
        instances = stack.enter_context(_joined(config))
        folder = Path(config.output_dir)
        with instances.together("the output folder"), _writable(folder):
            if instances.is_first:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_alone(config, folder))
        with instances.together("the log"), _writable(folder):
            stack.enter_context(logging_to(folder, instances.index))
        seeds = stack.enter_context(_seeded(config, instances))
        with instances.together("the output folder"), _writable(folder):
            facts = {
                "id": config.run.id,
                "instances": instances.count,
                "mode": config.mode.name.name,
                "config": plain(config),
                "seeds": {"data": seeds[0], "framework": seeds[1]},
                "versions": {
                    "cosmictagger": __version__,
                    "torch": torch.__version__,
                    "python": platform.python_version(),
                },
            }
            record = RunRecord(folder if instances.is_first else None, facts)
        stack.enter_context(_ending(record))
        launch = Launch(config, folder, record, *seeds, instances)
        launch.find_files()
        _say_what_runs(config, notes, instances.count)
        yield launch


@contextlib.contextmanager
def _joined(config: Config) -> Iterator[Instances]:
    """Connect the processes that share the run, and notify them if this process fails."""
    mode = config.run.compute_mode
    makers = {ComputeMode.IPU: instances.of_popdist, ComputeMode.RDU: instances.alone}
    distributed = instances.of_torch if config.run.distributed else instances.alone
    group = makers.get(mode, distributed)()  # type: ignore[arg-type]  settled
    try:
        values = {name: plain(look_up(config, name)) for name in leaves(config)}
        group.agree("the configuration", values)
        yield group
    except CosmicTaggerError as error:
        error.is_told = group.is_told and not group.is_first
        group.fail(str(error))
        raise
    except BaseException as error:
        group.fail(f"{type(error).__name__}: {error}")
        raise


@contextlib.contextmanager
def _alone(config: Config, folder: Path) -> Iterator[None]:
    """Lock an output folder against concurrent launches."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive_file(folder / LOG))
        except BlockingIOError:
            process = entries_of(folder / "run.json").get("process", "unknown")
            raise ConfigError(
                f"run.id={config.run.id} is running already: process {process} writes to {folder}. "
                "Wait for its end, stop it, or give this run another run.id."
            ) from None
        yield


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeEncodeError) as error:  # the latter: of a name, in the locale
        raise ConfigError(
            f"output_dir={folder} cannot be made or written: {error}. Name another folder, or "
            "make room."
        ) from None


@contextlib.contextmanager
def _ending(record: RunRecord) -> Iterator[None]:
    """Record how a launch ends, and convert system errors to readable messages."""
    try:
        yield
    except CosmicTaggerError as error:
        _note_failure(record, str(error))
        raise
    except OSError as error:
        _note_failure(record, str(error))
        raise CosmicTaggerError(f"A file cannot be read or written: {error}") from error
    except KeyboardInterrupt as error:
        _end(record, f"stopped by signal {getattr(error, 'signal', int(signal.SIGINT))}")
        raise
    except BaseException as error:
        _note_failure(record, f"{type(error).__name__}: {error}", exc_info=True)
        if _is_of_memory(error):
            raise CosmicTaggerError(
                f"Memory is not enough: {str(error).splitlines()[0].rstrip('.')}. Choose a smaller "
                "run.minibatch_size, a larger data.downsample or a smaller network."
            ) from error
        raise
    if record.values["ended"] is None:
        record.end("finished")


def _is_of_memory(error: BaseException) -> bool:
    # torch has a type for the memory of a GPU, and words for that of the host.
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return bool(str(error))
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _note_failure(record: RunRecord, text: str, *, exc_info: bool = False) -> None:
    log_to_file(logging.ERROR, text, exc_info=exc_info)
    _end(record, f"failed: {text}")


def _end(record: RunRecord, how: str) -> None:
    # Where the disk is full, the first error is the one to tell.
    with contextlib.suppress(OSError):
        record.end(how)


def _say_what_runs(config: Config, notes: list[str], count: int) -> None:
    logger.info("Dumping launch arguments.")
    logger.info(str(sys.argv))
    logger.info(f"Running {_TITLES[config.mode.name]}")
    logger.info(dump(config))
    if count > 1:
        logger.info(f"{count} instances share this run; this is the log of all of them.")
    for note in notes:
        warn_once(note)


@contextlib.contextmanager
def _seeded(config: Config, instances: Instances) -> Iterator[tuple[int, int]]:
    """Choose the seeds; a fixed seed of weights selects deterministic kernels."""
    drawn = random.Random(time.time_ns()).randrange(1, 2**31)
    drawn = instances.from_first("the seeds", drawn)
    seeds = {"data.seed": config.data.seed, "framework.seed": config.framework.seed}
    before = torch.are_deterministic_algorithms_enabled()
    state = torch.get_rng_state()
    if config.framework.seed > 0:
        torch.use_deterministic_algorithms(True, warn_only=True)
    for name in [name for name, seed in seeds.items() if seed <= 0]:
        seeds[name] = drawn
        logger.info(f"{name}={drawn} was drawn; give it to repeat this run.")
    try:
        yield seeds["data.seed"], seeds["framework.seed"]
    finally:
        # The call alone imports torch's compiler, which takes a second.
        if config.framework.seed > 0:
            torch.use_deterministic_algorithms(before)
        torch.set_rng_state(state)
