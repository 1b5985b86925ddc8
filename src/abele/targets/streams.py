"""CUDA streams on which programs are captured.

Libraries allocate memory for each stream they are used on, cuBLAS 32 MiB. So warm-up runs and
measurements use the capture stream, too. Each thread has its own: work that another thread queued
there would become part of a capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

_of_thread = threading.local()


def capture_stream() -> torch.cuda.Stream:
    """Return the CUDA capture stream of this thread and the current GPU."""
    return _first(1)[0]


def side_streams(count: int) -> list[torch.cuda.Stream]:
    """Return ``count`` CUDA streams of this thread in addition to its capture stream."""
    return _first(1 + count)[1:]


def _first(count: int) -> list[torch.cuda.Stream]:
    of_devices: dict[int, list[torch.cuda.Stream]]
    of_devices = _of_thread.__dict__.setdefault("streams", {})
    device = torch.cuda.current_device()
    streams = of_devices.setdefault(device, [])
    while len(streams) < count:
        streams.append(torch.cuda.Stream(device))
    return streams[:count]


def on_capture_stream(work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """Run ``work`` on the capture stream, ordered with the current CUDA stream.

    Args:
        work: returns tensors that are used on the current stream.
    """
    current, stream = torch.cuda.current_stream(), capture_stream()
    if stream == current:
        return work()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        results = work()
    current.wait_stream(stream)
    for tensor in results:
        tensor.record_stream(current)
    return results
