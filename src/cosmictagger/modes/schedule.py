"""The learning rate: a linear rise over one epoch, twenty epochs of plateau, an exponential fall.

The shape and its numbers are CosmicTagger's (https://github.com/coreyjadams/CosmicTagger).
"""

import math
from dataclasses import dataclass

LOWEST = 1e-4
"""Where the rise begins and the fall ends."""

_RISE = 1.0  # epochs
_FALL = 21.0  # epochs at which the plateau ends
_DECAY = 0.999  # per epoch


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step.

    Attributes:
        peak: learning rate of the plateau.
        images_per_step: images that one update of all instances sees, accumulated ones included.
            (The original leaves the accumulated ones out; without them there is no difference.)
        events: events in the training set.
        surplus: images that earlier steps saw beyond that: negative if their batches were smaller.
    """

    peak: float
    images_per_step: int
    events: int
    surplus: int = 0

    def images(self, step: int) -> int:
        """Return how many images were seen before a step."""
        return step * self.images_per_step + self.surplus

    def epoch(self, step: int) -> float:
        """Return how often the training set has been seen before a step."""
        return self.images(step) / self.events

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        x = self.epoch(step)
        if x < _RISE:
            return LOWEST + x * (self.peak - LOWEST)
        if x < _FALL:
            return self.peak
        return (self.peak - LOWEST) * math.exp(-_DECAY * (x - _FALL)) + LOWEST
