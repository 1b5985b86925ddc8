"""Checks of a configuration: refused settings, settings without effect, and shares of processes."""

import os
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from abele.storage.files import why_no_folder_name
from cosmictagger import instances
from cosmictagger.config.composing import Config
from cosmictagger.config.keys import (
    ComputeMode,
    DataKind,
    ModeKind,
    Run,
    ScheduleKind,
    Torch,
)
from cosmictagger.errors import ConfigError

_WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")


def settle_processes(config: Config) -> list[str]:
    """Check that the number of processes can share the run, without waiting for any process.

    Args:
        config: ``run.compute_mode`` is settled; ``run.num_replicas`` becomes what poprun was told.

    Returns:
        A sentence for each key that is set and has no effect.
    """
    count = instances.processes()
    _check_known(count)
    _check_mode(config, count)
    minibatch(config, count)
    notes = without_effect(config, count)  # before poprun's number of replicas is put in
    return [*notes, *_settle_replicas(config)]


def minibatch(config: Config, count: int) -> int:
    """Return images per forward pass of each replica of one of ``count`` processes."""
    size = config.run.minibatch_size
    if config.mode.name is not ModeKind.train:
        return size  # whole batches in turn: the loss of a batch is not a mean over its images
    if config.run.compute_mode is ComputeMode.IPU or config.data.name is DataKind.synthetic:
        return size
    if size % count:
        raise ConfigError(
            f"run.minibatch_size={size} was asked for, which {count} processes cannot share: in "
            f"{config.run.compute_mode.name} mode it counts the images of all of them. Choose a "  # type: ignore[union-attr]
            f"multiple of {count}."
        )
    return size // count


def _check_known(count: int) -> None:
    for name in _WORLD_SIZES:
        if count == 1 and os.environ.get(name, "1") not in ("", "0", "1"):
            raise ConfigError(
                f"This is one of {os.environ[name]} processes ({name}), but nothing tells which "
                "one. Start them with poprun, torchrun, mpirun or srun, or start one process."
            )


def _check_mode(config: Config, count: int) -> None:
    mode = config.run.compute_mode
    assert mode is not None  # settled
    if mode is ComputeMode.RDU and (config.run.distributed or count > 1):
        reason = f"this is one of {count} processes" if count > 1 else "run.distributed=True"
        raise ConfigError(
            f"{reason[0].upper()}{reason[1:]}, but RDU mode runs in one process. Start one, "
            "without run.distributed, or choose run.compute_mode=CPU, GPU or IPU."
        )
    if count == 1:
        return
    if config.mode.name is ModeKind.iotest:
        raise ConfigError(
            f"This is one of {count} processes, but mode=iotest measures one. Start one process."
        )
    if mode is not ComputeMode.IPU and not config.run.distributed:
        raise ConfigError(
            f"This is one of {count} processes, which would train as many networks that know "
            "nothing of each other. Add run.distributed=True, so that they share one run, or "
            "start one process."
        )


def _settle_replicas(config: Config) -> list[str]:
    import popdist

    run = config.run
    if run.compute_mode is not ComputeMode.IPU:
        if run.num_replicas != 1:
            raise ConfigError(
                f"run.num_replicas={run.num_replicas} was asked for; only IPU mode has replicas. "
                f"In {run.compute_mode.name} mode start several processes with "  # type: ignore[union-attr]
                "run.distributed=True."
            )
        return []
    requested, run.num_replicas = run.num_replicas, popdist.getNumLocalReplicas()
    if not popdist.isPopdistEnvSet():
        run.num_replicas = requested
    elif requested not in (1, run.num_replicas):
        return [
            f"run.num_replicas={requested} has no effect: poprun gives each instance its replicas."
        ]
    return []


def _check_cache(value: str) -> None:
    is_number = value != "0" and value.replace(".", "", 1).isdigit()
    if is_number or value.lower() in ("true", "yes") or Path(value).is_file():
        raise ConfigError(
            f"run.executable_cache={value} was asked for, which is no folder. Name one, such as "
            "run.executable_cache=./executables, or turn the cache off with false."
        )


_DEFAULT_ITERATIONS = 500
STANDARD_EPOCHS = 25
"""Length of the schedule ``standard`` where the length of a run is given in steps."""
# Numbers of ``mode.optimizer``, and whether they may be zero.
_RATES = {
    "learning_rate": False,
    "weight_decay": True,
    "lr_schedule.min_learning_rate": False,
    "lr_schedule.decay_floor": True,
    "lr_schedule.decay_epochs": True,
}
_LARGEST = 2**63 - 1
# Numbers by their least value, where a configuration has them.
_INTERVALS = "mode.checkpoint_iteration mode.summary_iteration mode.logging_iteration"
_COUNTS = "run.minibatch_size run.num_replicas data.version mode.optimizer.gradient_accumulation"
_FROM_0 = "run.aux_iterations data.downsample data.generator_seed mode.displays mode.start_index"
_LEAST = (
    (-_LARGEST, "data.seed framework.seed"),
    (0, _FROM_0),
    (1, f"run.iterations run.epochs {_COUNTS} {_INTERVALS}"),
)


def settle(config: Config) -> list[str]:
    """Fill in machine-dependent values of a configuration and check all other values.

    Args:
        config: changed in place: ``run.compute_mode`` and ``run.iterations`` get values.

    Returns:
        A sentence for each key that is set and has no effect.
    """
    _check_names(config)
    if config.framework.name != "torch":
        raise ConfigError(
            f"framework={config.framework.name} was asked for; this application is PyTorch. "
            "Use framework=torch."
        )
    _settle_mode(config)
    _check_numbers(config)
    _settle_length(config)
    _check_cache(config.run.executable_cache)
    if getattr(config.mode, "quantization_aware", False):
        raise ConfigError(
            "mode.quantization_aware=True was asked for; training for 8-bit integers is not "
            "available. Leave it False."
        )
    if config.framework.sparse:
        raise ConfigError(
            "framework.sparse=True was asked for, but no library for sparse convolutions that can "
            "be installed trains without CUDA. Use framework.sparse=False."
        )
    return [*config.notes, *settle_processes(config)]


def _settle_length(config: Config) -> None:
    """Check epochs against iterations and schedule, or fill in the default of iterations."""
    run, trains = config.run, config.mode.name is ModeKind.train
    if not trains or run.epochs is None:
        if run.iterations is None and config.mode.name is not ModeKind.inference:
            run.iterations = _DEFAULT_ITERATIONS
    elif run.iterations is not None:
        raise ConfigError(
            f"run.iterations={run.iterations} and run.epochs={run.epochs} were asked for, which "
            "are two lengths of one run. Give one of them."
        )
    if trains:
        _check_schedule(config)


def _check_schedule(config: Config) -> None:
    optimizer, epochs = config.mode.optimizer, config.run.epochs
    rates = optimizer.lr_schedule
    asked = f"mode.optimizer.lr_schedule.name={rates.name.name} was asked for"
    if rates.name in (ScheduleKind.default, ScheduleKind.flat):
        return
    if epochs is None and rates.name is ScheduleKind.one_cycle:
        raise ConfigError(
            f"{asked}, which is fitted to the length of a run in epochs, but it was given as "
            f"run.iterations={config.run.iterations}. Give run.epochs=N instead, or use "
            "lr_schedule.name=standard or flat."
        )
    total = epochs or STANDARD_EPOCHS
    if total < rates.decay_epochs + 1:
        raise ConfigError(
            f"{asked} with {total} epochs, of which decay_epochs={rates.decay_epochs:g} leave less "
            "than one for the rise. Use a larger run.epochs, or fewer "
            "mode.optimizer.lr_schedule.decay_epochs."
        )
    for name in ("decay_floor", "min_learning_rate"):
        if getattr(rates, name) > optimizer.learning_rate:
            raise ConfigError(
                f"{asked} with {name}={getattr(rates, name)}, which is above the highest rate, "
                f"mode.optimizer.learning_rate={optimizer.learning_rate}. Change one of them."
            )


def _check_names(config: Config) -> None:
    names = {"run.id": config.run.id, "network.name": config.network.name}
    for key, name in {"output_dir": config.output_dir, **names}.items():
        if not name.strip():
            raise ConfigError(
                f"{key} is missing or empty. Give it a name, for example {key}=first."
            )
    for key, name in names.items():
        why = why_no_folder_name(name)
        if why is not None:
            raise ConfigError(
                f"{key}={name} was asked for, but a folder is named after it, and {why}. Give it "
                f"a name, for example {key}=first."
            )


def _settle_mode(config: Config) -> None:
    run = config.run
    if run.compute_mode is None:
        run.compute_mode = ComputeMode.GPU if torch.cuda.is_available() else ComputeMode.CPU
    if run.compute_mode is ComputeMode.GPU and not torch.cuda.is_available():
        raise ConfigError(
            "run.compute_mode=GPU was asked for, but PyTorch finds no CUDA device. "
            "Use run.compute_mode=CPU."
        )


def _check_numbers(config: Config) -> None:
    for name, least in ((name, least) for least, names in _LEAST for name in names.split()):
        value = look_up(config, name)
        if value is not None and not least <= value <= _LARGEST:
            limit = f"least is {least}" if value < least else f"largest is {_LARGEST}"
            raise ConfigError(f"{name}={value} was asked for; the {limit}.")
    if look_up(config, "data.version") not in (1, 2):
        raise ConfigError(f"data.version={config.data.version} was asked for; there are 1 and 2.")
    for name, may_be_zero in _RATES.items():
        rate = look_up(config, f"mode.optimizer.{name}")
        if rate is not None and not (0 <= rate < float("inf") and (rate or may_be_zero)):
            least = "at least 0" if may_be_zero else "positive"
            raise ConfigError(f"mode.optimizer.{name}={rate} was asked for; it has to be {least}.")


_PICTURES = "mode.no_summary_images"
_OF_NETWORKS = f"run.precision run.saver framework.seed mode.weights_location {_PICTURES}"
_OF_DEVICES = "framework.compile data.data_format run.executable_cache"
_OF_UPDATES = " ".join(
    f"mode.optimizer.{name}" for name in ("name", "gradient_accumulation", *_RATES)
)
_OF_TRAINING = f"run.num_replicas run.aux_iterations data.events data.aux_file {_OF_UPDATES}"
_EPOCHS = "with run.epochs each epoch ends with a validation on the whole file"


def without_effect(config: Config, count: int) -> list[str]:
    """Return a sentence for each key that is set, and has no effect in a run of its kind.

    Args:
        config: its compute mode is settled; a key is set if its value is not its group's default.
        count: number of processes that share the run.
    """
    run, mode, ipu = config.run, config.mode.name, config.run.compute_mode is ComputeMode.IPU
    trains, network = mode is ModeKind.train, mode is not ModeKind.iotest
    plain_torch = run.compute_mode in (ComputeMode.CPU, ComputeMode.GPU)
    synthetic = config.data.name is DataKind.synthetic
    rows = (  # whether keys have an effect, why not, and the keys; of a key the first row counts
        (False, "torch.distributed connects processes", "run.horovod_num_groups"),
        (False, "torch's DDP is used", "framework.distributed_mode"),
        (False, "mode.optimizer.weight_decay decays weights", "network.weight_decay"),
        (trains, "only mode=train counts epochs", "run.epochs"),
        (not run.epochs or not run.aux_iterations, _EPOCHS, "run.aux_iterations"),
        (synthetic, "the images of a file have their size", "data.version"),
        (network, "mode=iotest runs no network", f"{_OF_NETWORKS} {_OF_DEVICES}"),
        (not ipu, "poprun decides in IPU mode", "run.distributed"),
        (count > 1, "this is one process", "run.distributed"),
        (
            plain_torch and run.distributed,
            "it is for run.distributed=True",
            "run.broadcast_buffers",
        ),
        (plain_torch, "it is for CPU and GPU mode", "framework.compile data.data_format"),
        (ipu, "it is for IPU mode", "run.executable_cache"),
        (trains, "it is for mode=train", f"{_OF_TRAINING} {_PICTURES}"),
        (trains or (ipu and network), "it is for mode=train and for IPU mode", "run.profile"),
        (trains or synthetic, "events are read in order", "data.seed"),
        (run.saver, "run.saver is False", f"mode.summary_iteration {_PICTURES}"),
        (run.aux_iterations or not trains, "nothing validates", "data.aux_file data.aux_events"),
    )
    default = Config(Run(), type(config.mode)(), type(config.data)(), Torch())
    notes: dict[str, str] = {}
    for has_effect, why, keys in rows:
        for key in () if has_effect else keys.split():
            value = plain(look_up(config, key))
            if value != plain(look_up(default, key)):
                notes.setdefault(key, f"{key}={value} has no effect: {why}.")
    return list(notes.values())


def look_up(config: Config, name: str) -> Any:
    """Return the value of a configuration key such as ``run.minibatch_size``; None if unknown."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def plain(value: Any) -> Any:
    """Convert a configuration to JSON values; enumerations by name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    return value.name if isinstance(value, Enum) else value


def dump(config: Config) -> str:
    """Format a configuration as JSON text with sorted keys."""
    return "\n".join(["", "", "-- CONFIG --", *_lines(plain(config), 0)])


def _lines(values: dict[str, Any], level: int) -> list[str]:
    lines = []
    for name in sorted(values):
        head = "  " * level + name
        if isinstance(values[name], dict):
            lines += [f"{head}: ", *_lines(values[name], level + 1)]
        else:
            lines.append(f"{head.ljust(30, '.')}: {values[name]}")
    return lines
