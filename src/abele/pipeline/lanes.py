"""How the work of one stage meets the work of the others on the device.

On a processor a task has ended when its call returns. A GPU works on behind: each stage has a
stream of its own there, and a value brings an event that its taker's stream waits for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch


class Lane:
    """The lane of a stage on the host."""

    def begin(self) -> None:
        """The caller's work comes before that of the lane."""

    def end(self) -> None:
        """The lane's work comes before what the caller does next."""

    def open(self) -> contextlib.AbstractContextManager[Any]:
        """While open, this thread works in the lane."""
        return contextlib.nullcontext()

    def give(self, values: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Values as others take them."""
        return values

    def take(self, value: Any) -> torch.Tensor:
        """A value that another lane, or this one, has given."""
        return value

    def leave(self, value: Any) -> torch.Tensor:
        """A value that has been given, for the caller of the pipeline."""
        return value

    def bytes_of(self, value: Any) -> int:
        """The size of a value that has been given."""
        return value.nbytes


class _StreamLane(Lane):
    """The lane of a stage on a GPU."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.caller = torch.cuda.current_stream(device)

    def begin(self) -> None:
        self.caller = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(self.caller)

    def end(self) -> None:
        self.caller.wait_stream(self.stream)

    @contextlib.contextmanager
    def open(self):
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield

    def give(self, values: Sequence[torch.Tensor]) -> Sequence[Any]:
        if not values:
            return values
        event = torch.cuda.Event()
        event.record(self.stream)
        return [(value, event) for value in values]

    def take(self, value: Any) -> torch.Tensor:
        tensor, event = value
        self.stream.wait_event(event)
        # Its memory belongs to the giver's stream, which must not use it again too early.
        tensor.record_stream(self.stream)
        return tensor

    def leave(self, value: Any) -> torch.Tensor:
        tensor, _ = value
        tensor.record_stream(self.caller)
        return tensor

    def bytes_of(self, value: Any) -> int:
        return value[0].nbytes


def lanes(device: torch.device, count: int) -> list[Lane]:
    """One lane for each of ``count`` stages."""
    if device.type == "cuda":
        return [_StreamLane(device) for _ in range(count)]
    return [Lane() for _ in range(count)]
