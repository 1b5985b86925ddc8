"""Observers of a session's calls, and time marks of micro-steps.

A session records the times of its latest call by itself. Observers write files, trace events and
read values meanwhile. Any number may be attached; without one, no hook is called.

Each micro-step has marks: two integers on the host, two events on a GPU. A GPU runs programs
asynchronously, so the host's clock would only measure the time of queueing them. Marks are
therefore opaque until ``nanoseconds`` reads them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from abele.step.batching import MicroStep


class Observer:
    """An observer whose hooks do nothing; derived classes override some.

    Hooks are called in the thread of the caller, observer by observer in the order in which they
    were attached. What a hook raises ends the call, as an error of the program would.
    """

    def on_stage(self, stage: str, fraction: float) -> None:
        """Note that a stage of building an executable begins.

        ``abele.build(..., progress=observer.on_stage)`` calls it; a session, which is made after
        building, does not.

        Args:
            stage: what begins, in words, such as ``compile forward``.
            fraction: how much of the whole is done, from 0 to 1.
        """

    def on_call_begin(self, began_ns: int) -> None:
        """Note that a session's call begins, before any program has run."""

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Receive the inputs of a call, before any program has run."""

    def on_micro_step(self, step: MicroStep, begin: Any, end: Any) -> None:
        """Note that a micro-step has run, or has been queued on a GPU.

        Calls are faster where no observer overrides this or ``on_update``.

        In a pipeline micro-steps overlap; an update's hooks are called after all have run.

        Args:
            step: which one.
            begin: mark of its beginning; ``clock.nanoseconds([begin, end])`` reads it, and waits
                for a GPU.
            end: mark of its end, which is after its update if it has one.
        """

    def on_update(self, step: MicroStep) -> None:
        """Note that an update changed the weights; called before the step's ``on_micro_step``."""

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Receive the outputs of a call that has run or has been queued on the device.

        Args:
            outputs: what the call returns, on the device, before its caller gets it; in the order
                of the program's outputs, the rows of all micro-steps joined.
        """

    def on_call_end(self, call: CallRecord) -> None:
        """Note that a call has ended, with its results delivered to the caller.

        Args:
            call: its times, and the error if it came to one; then it has fewer marks.
        """


class Hooks(NamedTuple):
    """The overridden hooks of all observers of a session.

    Attributes:
        begin: ``on_call_begin`` of those that have it.
        inputs: ``on_inputs``.
        outputs: ``on_outputs``.
        end: ``on_call_end``.
        watching: observers of micro-steps or updates.
    """

    begin: Sequence[Callable[[int], None]]
    inputs: Sequence[Callable[[Sequence[torch.Tensor]], None]]
    outputs: Sequence[Callable[[Sequence[torch.Tensor]], None]]
    end: Sequence[Callable[[CallRecord], None]]
    watching: Sequence[Observer]


def hooks_of(observers: Sequence[Observer]) -> Hooks:
    """Return the overridden hooks of observers, in the observers' order."""

    def having(*hooks: str) -> list[Observer]:
        base = [getattr(Observer, hook) for hook in hooks]
        return [each for each in observers if [getattr(type(each), hook) for hook in hooks] != base]

    return Hooks(
        begin=[each.on_call_begin for each in having("on_call_begin")],
        inputs=[each.on_inputs for each in having("on_inputs")],
        outputs=[each.on_outputs for each in having("on_outputs")],
        end=[each.on_call_end for each in having("on_call_end")],
        watching=having("on_micro_step", "on_update"),
    )


@dataclasses.dataclass(frozen=True)
class _DeviceMark:
    """A GPU event that marks a time, and when the host queued it."""

    event: torch.cuda.Event
    host_ns: int


class CallRecord(NamedTuple):  # made at every call that is observed: a dataclass takes longer
    """The times of one call and its micro-steps.

    Attributes:
        began_ns: start of the call, on the clock of ``time.perf_counter_ns``.
        marks: before and after each micro-step, opaque; see ``micro_steps``.
        ended_ns: when its results were delivered, or an error ended it.
        error: the error that ended it, or None.
        following_ns: time before the first mark that a compiling process and the comparison of
            its programs took.
    """

    began_ns: int
    marks: Sequence[Any]
    ended_ns: int
    error: BaseException | None = None
    following_ns: int = 0

    def micro_steps(self) -> list[tuple[int, int]]:
        """Return start and end of each completed micro-step, in ns; waits for a GPU."""
        marks = nanoseconds(self.marks)
        return list(zip(marks[::2], marks[1::2], strict=False))


def _mark_device() -> _DeviceMark:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return _DeviceMark(event, time.perf_counter_ns())


def clock(device: torch.device) -> Callable[[], Any]:
    """Return the function that records a time mark in the work of ``device``."""
    return _mark_device if device.type == "cuda" else time.perf_counter_ns


def nanoseconds(marks: Sequence[Any]) -> list[int]:
    """Convert time marks to the host's ``time.perf_counter_ns``; waits for a GPU's events.

    The first mark of a call meets an idle GPU, so the two clocks are laid over each other there.
    """
    if not marks or not isinstance(marks[0], _DeviceMark):
        return list(marks)
    marks[-1].event.synchronize()
    first = marks[0]
    return [first.host_ns + round(1e6 * first.event.elapsed_time(mark.event)) for mark in marks]
