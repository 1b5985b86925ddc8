"""``mode=iotest``: reading and downsampling events, with their rate; no network."""

from __future__ import annotations

import itertools
import time

from cosmictagger import sources
from cosmictagger.config.keys import DataKind
from cosmictagger.errors import ConfigError
from cosmictagger.launch import Launch
from cosmictagger.modes.stopping import Stop
from cosmictagger.recording import Bar, logger


def measure(launch: Launch) -> int | None:
    """Read up to ``run.iterations`` batches and log the reading speed.

    Returns:
        The number of the signal that ended it early, or None.
    """
    total = launch.config.run.iterations
    seconds: list[float] = []
    with (
        sources.in_order(launch.config, launch.data_seed, launch.instances) as events,
        Stop(alone=True) as stop,
    ):
        if launch.config.data.name is not DataKind.synthetic:
            launch.record.update({"events": events.events})
        batches = sources.endless(events)
        if launch.config.mode.start_index:
            first = sources.beginning_at(events, launch.config.mode.start_index)
            batches = itertools.chain(first, batches)
        images = 0
        with Bar(total, "iotest") as bar:
            for index in range(total or 0):
                if stop.signal is not None:
                    break
                started = time.perf_counter()
                batch = next(batches)
                seconds.append(time.perf_counter() - started)
                images += len(batch)
                logger.info(
                    f"{index}: Time to fetch a minibatch of data: {seconds[-1]:.2f}s",
                    extra={"kind": "step"},
                )
                stop.is_underway = True
                bar.step({"images_per_second": images / sum(seconds)})
        _report(launch, sum(seconds), images)
    return stop.signal


def _report(launch: Launch, seconds: float, images: int) -> None:
    if not images:
        raise ConfigError("Nothing was read: it was stopped before the first batch.")
    logger.info(f"Total IO Time: {seconds:.2f}s")
    logger.info(f"Total images read per batch: {launch.config.run.minibatch_size}")
    logger.info(f"Average Image IO Throughput: {images / seconds:.2f}")
    launch.record.update({"images": images, "seconds": seconds})
