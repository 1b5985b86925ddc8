"""Event sources of a configuration: files, random numbers, or the built-in generator."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmictagger.config.checks import minibatch
from cosmictagger.config.composing import Config
from cosmictagger.config.keys import DataKind, ModeKind, RandomMode
from cosmictagger.data.larcv import EventFile
from cosmictagger.data.loader import Batch, BatchStream, EventLoader, SyntheticLoader
from cosmictagger.data.truth import EVENT_LABEL, VERTICES
from cosmictagger.errors import ConfigError
from cosmictagger.instances import Instances
from cosmictagger.recording import logger, warn_once

SIZES = {1: (1280, 2048), 2: (1408, 2048)}
"""Height and width of images by ``data.version``."""

_CACHE = "COSMICTAGGER_CACHE"
_HELD_OUT = 1_000_000  # added to the generator's seed for events that nothing is trained on


def training(config: Config, seed: int, instances: Instances) -> BatchStream:
    """Return an endless loader of shuffled training batches, one per update.

    Args:
        config: settled.
        seed: of the order.
        instances: that share the images.
    """
    size = minibatch(config, instances.count) * config.run.num_replicas
    size *= config.mode.optimizer.gradient_accumulation
    data = config.data
    if data.name is DataKind.synthetic:
        return _synthetic(config, size, seed, instances)
    if data.name is DataKind.real and not data.label:
        raise ConfigError("data.label is empty, but training needs labels. Name their producer.")
    file = _main_file(config) if data.name is DataKind.real else _generated(config, held_out=False)
    return EventLoader(
        _opened(config, file), batch_size=size, seed=seed, across_epochs=True,
        shuffle=data.random_mode is RandomMode.random_blocks, shard=instances.shard,
        **_look(config),
    )  # fmt: skip


def validation(config: Config, instances: Instances) -> BatchStream | None:
    """Return a loader of validation batches, in order; None without validation events.

    A file that is missing is said in the log. The last batch of an epoch may be smaller, and of
    some of several instances empty.
    """
    data = config.data
    if not config.run.aux_iterations or data.name is DataKind.synthetic:
        return None
    if data.name is DataKind.generated:
        file = _generated(config, held_out=True) if data.aux_events else None
    else:
        file = Path(data.data_directory, data.aux_file) if data.aux_file else None
        if file is not None and not file.exists():
            # As the original does: its default names a file that few have.
            warn_once(
                f"There is no validation: data.aux_file={data.aux_file} was asked for, but there "
                f"is no {file}. Name another file, or none with data.aux_file= ."
            )
            return None
    if file is None:
        return None
    if data.name is DataKind.real and file.samefile(_main_file(config)):
        warn_once(
            f"Validation reads {file}, the events that are trained on, so it cannot show what the "
            "network makes of others. Name another file with data.aux_file=FILE."
        )
    size = minibatch(config, instances.count)
    file = _opened(config, file)
    return EventLoader(file, batch_size=size, shard=instances.shard, equal=True, **_look(config))


def prepare(config: Config) -> None:
    """Generate the events of the built-in generator before any instance reads the file."""
    if config.data.name is DataKind.generated:
        trains = config.mode.name is ModeKind.train
        if trains:
            _generated(config, held_out=False)
        if not trains or (config.run.aux_iterations and config.data.aux_events):
            _generated(config, held_out=True)


def in_order(config: Config, seed: int, instances: Instances) -> BatchStream:
    """Return a loader of every event once, in file order; the last batch may be smaller.

    Of generated events those that nothing is trained on.

    Args:
        config: settled.
        seed: of random events.
        instances: that take the batches in turn.
    """
    size, data = config.run.minibatch_size, config.data
    if data.name is DataKind.synthetic:
        return _synthetic(config, size, seed, instances)
    generated = data.name is DataKind.generated
    file = _generated(config, held_out=True) if generated else _main_file(config)
    file = _opened(config, file)
    return EventLoader(file, batch_size=size, shard=instances.shard, **_look(config))


def endless(loader: BatchStream) -> Iterator[Batch]:
    """Yield the batches of successive epochs without end."""
    while True:
        yield from loader


def beginning_at(loader: BatchStream, start: int) -> Iterator[Batch]:
    """Yield the batches of one epoch from an event on; the first batch may be smaller.

    Where instances share the events these are this instance's batches, see ``turns``.
    """
    if start >= loader.events:
        raise ConfigError(
            f"mode.start_index={start} was asked for, but there are {loader.events} events, "
            "counted from 0."
        )
    size, (index, count) = loader.batch_size, loader.order.shard
    number, inside = divmod(start, size)
    if inside:
        if number % count == index:
            yield loader.load(list(range(start, min((number + 1) * size, loader.events))))
        number += 1
    loader.set_epoch(0)
    loader.position = max(0, -((index - number) // count))  # its first batch from that number on
    if loader.position < len(loader):
        yield from loader


def turns(loader: BatchStream, start: int, total: int) -> range:
    """Return which of ``total`` batches from an event on belong to this instance, from 0."""
    index, count = loader.order.shard
    return range((index - start // loader.batch_size) % count, total, count)


def described(config: Config) -> str:
    """Describe the events of ``in_order`` in words."""
    data = config.data
    if data.name is DataKind.synthetic:
        return "random numbers"
    if data.name is DataKind.real:
        return str(_main_file(config))
    return f"{_generated_path(config, held_out=True)}, of the built-in generator"


def _look(config: Config) -> dict[str, Any]:
    heads = {EVENT_LABEL: config.network.classification, VERTICES: config.network.vertex}
    return {
        "downsample": config.data.downsample,
        "img_transform": config.data.img_transform,
        "truth": [name for name, head in heads.items() if head.active],
    }


def _synthetic(config: Config, size: int, seed: int, instances: Instances) -> SyntheticLoader:
    shape = SIZES[config.data.version]
    return SyntheticLoader(size, size=shape, seed=seed, shard=instances.shard, **_look(config))


def _main_file(config: Config) -> Path:
    return Path(config.data.data_directory, config.data.file)


def _opened(config: Config, path: Path) -> EventFile:
    if config.data.name is DataKind.generated:
        return EventFile(path)
    return EventFile(path, config.data.image, config.data.label or None)


def cache_folder() -> Path:
    """Return the folder of this user's generated events and compiled programs.

    Raises:
        ConfigError: there is no home folder to have it in.
    """
    chosen = os.environ.get(_CACHE) or os.path.expanduser("~/.cache/cosmictagger")
    if chosen.startswith("~"):
        raise ConfigError(
            f"There is no home folder for generated events: set {_CACHE} to a folder."
        )
    return Path(chosen)


def _generated(config: Config, *, held_out: bool) -> Path:
    """Return the file of generated events; generate the events if the file is missing."""
    from cosmictagger.data import generator

    data = config.data
    events = data.aux_events if held_out else data.events
    if events < 1:
        raise ConfigError(
            f"data.{'aux_events' if held_out else 'events'}={events} was asked for; this mode "
            "needs at least one event."
        )
    path = _generated_path(config, held_out=held_out)
    if not path.exists():
        logger.info(f"Making {events} event{'s' * (events > 1)}, once, to keep in {path}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (data.rows, data.columns)
        seed = _generator_seed(config, held_out)
        generator.generate(path, events, seed, size, data.cosmic_only)
    return path


def _generator_seed(config: Config, held_out: bool) -> int:
    return config.data.generator_seed + (_HELD_OUT if held_out else 0)


def _generated_path(config: Config, *, held_out: bool) -> Path:
    from cosmictagger.data import generator

    data, seed = config.data, _generator_seed(config, held_out)
    events = data.aux_events if held_out else data.events
    contents = f"{data.rows}x{data.columns}-seed{seed}-{events}"
    contents += f"-cosmic{data.cosmic_only:g}" if data.cosmic_only else ""
    folder = Path(data.folder) if data.folder else cache_folder()
    return folder / f"events-v{generator.VERSION}-{contents}.h5"
