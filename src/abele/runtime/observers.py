"""Hooks for whoever wants to know what a session does while it does it.

What can be asked after a call (its times, a pipeline's measurements) a session keeps by itself;
an observer is for files that are written, events that are traced and values that are looked at
meanwhile. Any number of them may be attached, in any order; without one, nothing here is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from abele.runtime.clock import CallRecord
from abele.step.batching import MicroStep

if TYPE_CHECKING:
    from abele.runtime.session import Session


class Observer:
    """Does nothing at any hook; derive from it and override those of interest.

    Hooks are called in the thread of the caller, observer by observer in the order in which they
    were attached. What a hook raises ends the call, as an error of the program would.
    """

    def on_stage(self, stage: str, fraction: float) -> None:
        """A part of building an executable begins.

        ``abele.build(..., progress=observer.on_stage)`` calls it; a session, which is made after
        building, does not.

        Args:
            stage: what begins, in words, such as ``compile forward``.
            fraction: how much of the whole is done, from 0 to 1.
        """

    def on_call_begin(self, began_ns: int) -> None:
        """A call begins; nothing of it has run.

        Args:
            began_ns: when its caller was called, on the clock of ``time.perf_counter_ns``.
        """

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """The inputs of a call are there; nothing of it has run.

        Args:
            inputs: one tensor per input slot, with the rows of the whole call.
        """

    def on_micro_step(self, step: MicroStep, begin: Any, end: Any) -> None:
        """A micro-step has run; on a GPU, it has been handed to the device.

        Calls are faster where no observer overrides this or ``on_update``.

        In a pipeline micro-steps overlap, and those of one update are told after all have run.

        Args:
            step: which one.
            begin: mark of its beginning; ``clock.nanoseconds([begin, end])`` reads it, and waits
                for a GPU.
            end: mark of its end, which is after its update if it has one.
        """

    def on_update(self, step: MicroStep) -> None:
        """The weights have changed; comes before ``on_micro_step`` of the same micro-step.

        Args:
            step: the micro-step that ended with the update.
        """

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """The micro-steps of a call have run, or have been handed to the device.

        Args:
            outputs: what the call returns, on the device, before its caller gets it; in the order
                of the program's outputs, the rows of all micro-steps joined.
        """

    def on_call_end(self, call: CallRecord) -> None:
        """A call has ended, and its results are where the caller wanted them.

        Args:
            call: its times, and the error if it came to one; then it has fewer marks.
        """


Maker = Callable[["Session"], Observer | None]
_makers: list[Maker] = []


@contextlib.contextmanager
def of_new_sessions(make: Maker) -> Generator[None]:
    """While open, a session that is made, in any thread, is observed from its first call on.

    For whoever runs a program and does not know its wrappers.

    Args:
        make: gives the observer of a session that is nearly made; None for sessions that are of no
            interest.
    """
    _makers.append(make)
    try:
        yield
    finally:
        _makers.remove(make)


def of_new(session: Session) -> tuple[Observer, ...]:
    """The observers that somebody wants a new session to have."""
    made = [make(session) for make in _makers]
    return tuple(each for each in made if each is not None)


class Hooks(NamedTuple):
    """What observers want to be told at each call: hooks that do nothing are left out.

    Attributes:
        begin: ``on_call_begin`` of those that have it.
        inputs: ``on_inputs``.
        outputs: ``on_outputs``.
        end: ``on_call_end``.
        watching: observers that are told of micro-steps or updates.
    """

    begin: tuple[Callable[[int], None], ...]
    inputs: tuple[Callable[[Sequence[torch.Tensor]], None], ...]
    outputs: tuple[Callable[[Sequence[torch.Tensor]], None], ...]
    end: tuple[Callable[[CallRecord], None], ...]
    watching: tuple[Observer, ...]


def hooks_of(observers: Sequence[Observer]) -> Hooks:
    """The hooks of observers, in their order."""
    return Hooks(
        begin=tuple(each.on_call_begin for each in observers if _has(each, "on_call_begin")),
        inputs=tuple(each.on_inputs for each in observers if _has(each, "on_inputs")),
        outputs=tuple(each.on_outputs for each in observers if _has(each, "on_outputs")),
        end=tuple(each.on_call_end for each in observers if _has(each, "on_call_end")),
        watching=tuple(
            each for each in observers if _has(each, "on_micro_step") or _has(each, "on_update")
        ),
    )


def _has(observer: Observer, hook: str) -> bool:
    return getattr(type(observer), hook) is not getattr(Observer, hook)
