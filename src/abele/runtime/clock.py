"""Marks in time for each micro-step: two integers on the host, two events on a GPU.

A GPU works on after the host has handed it a program, so the host's clock would only tell how long
handing over took. Marks are therefore opaque until somebody reads them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


@dataclasses.dataclass(frozen=True)
class _DeviceMark:
    """An event in the queue of a GPU, and when the host put it there."""

    event: torch.cuda.Event
    host_ns: int


class CallRecord(NamedTuple):  # made at every call that is observed: a dataclass takes longer
    """The times of the parts of one call.

    Attributes:
        began_ns: when it was made, on the clock of ``time.perf_counter_ns``.
        marks: before and after each micro-step, opaque; see ``micro_steps``.
        ended_ns: when its results were where the caller wanted them, or it came to an error.
        error: what it came to, if it did not end well.
        following_ns: of the time before the first mark, what was left to a process that compiles,
            and comparing what that has made.
    """

    began_ns: int
    marks: Sequence[Any]
    ended_ns: int
    error: BaseException | None = None
    following_ns: int = 0

    def micro_steps(self) -> list[tuple[int, int]]:
        """Return beginning and end of each micro-step that has ended, in ns; waits for a GPU."""
        marks = nanoseconds(self.marks)
        return list(zip(marks[::2], marks[1::2], strict=False))


def _mark_device() -> _DeviceMark:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return _DeviceMark(event, time.perf_counter_ns())


def clock(device: torch.device) -> Callable[[], Any]:
    """Return the function that marks a moment in the work of ``device``."""
    return _mark_device if device.type == "cuda" else time.perf_counter_ns


def nanoseconds(marks: Sequence[Any]) -> list[int]:
    """Convert marks to the host's ``time.perf_counter_ns``; waits for a GPU that is behind.

    The first mark of a call meets an idle GPU, so the two clocks are laid over each other there.
    """
    if not marks or not isinstance(marks[0], _DeviceMark):
        return list(marks)
    marks[-1].event.synchronize()
    first = marks[0]
    return [first.host_ns + round(1e6 * first.event.elapsed_time(mark.event)) for mark in marks]
