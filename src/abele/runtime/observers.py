"""Observers of a session's calls: hooks that run while a call does.

A session records the times of its latest call by itself. Observers write files, trace events and
read values meanwhile. Any number may be attached; without one, nothing here is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from abele.runtime.clock import CallRecord
from abele.step.batching import MicroStep


class Observer:
    """An observer whose hooks do nothing; derived classes override those of interest.

    Hooks are called in the thread of the caller, observer by observer in the order in which they
    were attached. What a hook raises ends the call, as an error of the program would.
    """

    def on_stage(self, stage: str, fraction: float) -> None:
        """Note that a part of building an executable begins.

        ``abele.build(..., progress=observer.on_stage)`` calls it; a session, which is made after
        building, does not.

        Args:
            stage: what begins, in words, such as ``compile forward``.
            fraction: how much of the whole is done, from 0 to 1.
        """

    def on_call_begin(self, began_ns: int) -> None:
        """Note that a call begins; nothing of it has run."""

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Receive the inputs of a call; nothing of it has run."""

    def on_micro_step(self, step: MicroStep, begin: Any, end: Any) -> None:
        """Note that a micro-step has run, or has been handed to a GPU.

        Calls are faster where no observer overrides this or ``on_update``.

        In a pipeline micro-steps overlap, and those of one update are told after all have run.

        Args:
            step: which one.
            begin: mark of its beginning; ``clock.nanoseconds([begin, end])`` reads it, and waits
                for a GPU.
            end: mark of its end, which is after its update if it has one.
        """

    def on_update(self, step: MicroStep) -> None:
        """Note that the weights have changed; called before ``on_micro_step`` of that step."""

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Receive the outputs of a call, which has run or has been handed to the device.

        Args:
            outputs: what the call returns, on the device, before its caller gets it; in the order
                of the program's outputs, the rows of all micro-steps joined.
        """

    def on_call_end(self, call: CallRecord) -> None:
        """Note that a call has ended, with its results where the caller wanted them.

        Args:
            call: its times, and the error if it came to one; then it has fewer marks.
        """


class Hooks(NamedTuple):
    """The hooks of all observers that a call has to call; hooks that do nothing are left out.

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
    """Return the hooks of observers, in their order."""

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
