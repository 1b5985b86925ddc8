"""Learning-rate schedules: that of the published application, and those of its version 2.1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cosmictagger.config.checks import STANDARD_EPOCHS
from cosmictagger.config.keys import LearningRates, ScheduleKind

LOWEST = 1e-4
"""The learning rate at the start of the rise and at the end of the fall of ``default``."""

_RISE = 1.0  # epochs
_FALL = 21.0  # epochs at which the plateau ends
_DECAY = 0.999  # per epoch
_STANDARD_LOWEST = 1e-6
_DECAY_OF_STEPS = 0.01  # of one_cycle and standard, per step


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the step.

    Attributes:
        peak: the highest learning rate.
        images_per_step: images that one update of all instances sees, accumulated ones included.
            (The original leaves the accumulated ones out; without them there is no difference.)
        events: events in the training set.
        surplus: images that earlier steps saw beyond that: negative if their batches were smaller.
        settings: kind of schedule and its other rates.
        epochs: of the whole run; None where its length is given in steps.
    """

    peak: float
    images_per_step: int
    events: int
    surplus: int = 0
    settings: LearningRates = field(default_factory=LearningRates)
    epochs: int | None = None

    def images(self, step: int) -> int:
        """Return the number of images seen before a step."""
        return step * self.images_per_step + self.surplus

    def epoch(self, step: int) -> float:
        """Return the number of epochs completed before a step, as a float."""
        return self.images(step) / self.events

    def step_of(self, epoch: int) -> int:
        """Return the number of steps after which so many epochs are completed."""
        return -((self.surplus - epoch * self.events) // self.images_per_step)

    def end(self) -> int | None:
        """Return the step from which on the rate is ``decay_floor``; None if there is none."""
        phases = self._phases()
        steps = sum(phase.steps for phase in phases) - self.surplus / self.images_per_step
        return math.ceil(steps) if phases else None

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        kind = self.settings.name
        if kind is ScheduleKind.flat:
            return self.peak
        if kind is ScheduleKind.default:
            return self._default(self.epoch(step))
        i = self.images(step) / self.images_per_step
        for phase in self._phases():
            if i < phase.steps:
                return phase.rate(i)
            i -= phase.steps
        # The original falls to 0 here, and trains no more without a word.
        return self.settings.decay_floor

    def _default(self, x: float) -> float:
        if x < _RISE:
            return LOWEST + x * (self.peak - LOWEST)
        if x < _FALL:
            return self.peak
        return (self.peak - LOWEST) * math.exp(-_DECAY * (x - _FALL)) + LOWEST

    def _phases(self) -> Sequence[_Phase]:
        phases = _PHASES.get(self.settings.name)
        return [] if phases is None else phases(self)

    @property
    def _epoch_length(self) -> int:
        return self.events // self.images_per_step


@dataclass(frozen=True)
class _Phase:
    """A part of a schedule: linear from one rate to another, or exponential towards the other."""

    steps: int
    start: float
    stop: float
    exponential: bool = False

    def rate(self, i: float) -> float:
        """Return the rate of a step, counted from the start of the phase."""
        if self.exponential:
            return (self.start - self.stop) * math.exp(-_DECAY_OF_STEPS * i) + self.stop
        return self.start + i * (self.stop - self.start) / self.steps


def _one_cycle(schedule: Schedule) -> list[_Phase]:
    rates, length, peak = schedule.settings, schedule._epoch_length, schedule.peak
    assert schedule.epochs is not None  # checked with the configuration
    steps = (schedule.epochs - rates.decay_epochs) * length
    rise = int(0.5 * steps)
    return [
        _Phase(rise, rates.min_learning_rate, peak),
        _Phase(int(steps) - rise, peak, rates.min_learning_rate),
        _decay(schedule, rates.min_learning_rate),
    ]


def _standard(schedule: Schedule) -> list[_Phase]:
    rates, length, peak = schedule.settings, schedule._epoch_length, schedule.peak
    plateau = (schedule.epochs or STANDARD_EPOCHS) - rates.decay_epochs - 1
    return [
        _Phase(length, _STANDARD_LOWEST, peak),
        _Phase(int(plateau * length), peak, peak),
        _decay(schedule, peak),
    ]


def _decay(schedule: Schedule, start: float) -> _Phase:
    rates = schedule.settings
    return _Phase(int(schedule._epoch_length * rates.decay_epochs), start, rates.decay_floor, True)


_PHASES: Mapping[ScheduleKind, Callable[[Schedule], list[_Phase]]] = {
    ScheduleKind.one_cycle: _one_cycle,
    ScheduleKind.standard: _standard,
}
