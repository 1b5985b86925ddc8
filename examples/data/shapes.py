"""Distance fields and random parameters, the alphabet that `silhouettes` writes garments in.

Only + - * / sqrt, comparisons and floor are used, never a sum over an array: IEEE arithmetic
defines these to the last bit, so every machine draws the same pictures. Sines and exponentials
differ between libraries.

Shapes: x, y and all fields are float32 [B, P] (picture, pixel); random parameters are [B, 1].
The frame is -1..1, x to the right and y downwards, 14 pixels to the unit.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]

FAR = 9.0  # a distance beyond every picture


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a garment looks like before light, cloth and noise.

    Attributes:
        distance: to the outline in units of the frame, negative inside.
        shade: brightness factor of seams, buttons and other details; 1 is the plain cloth.
    """

    distance: Field
    shade: Field


class Draw:
    """Random parameters, one per picture of a block."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self.rng = rng
        self.count = count

    def __call__(self, low: float | Field, high: float | Field) -> Field:
        """Uniform between `low` and `high`, [B, 1]."""
        unit = self.rng.random((self.count, 1), dtype=np.float32)
        return low + (high - low) * unit

    def chance(self, probability: float) -> NDArray[np.bool_]:
        """Draw booleans [B, 1], True with the given probability."""
        return self.rng.random((self.count, 1), dtype=np.float32) < probability


def ramp(value: Field, start: Field | float, stop: Field | float) -> Field:
    """0 up to `start`, 1 from `stop`, straight between."""
    return np.clip((value - start) / (stop - start), 0.0, 1.0)


def line(distance: Field, half_width: Field | float) -> Field:
    """1 on a line, falling to 0 at `half_width` from it."""
    return np.clip(1.0 - np.abs(distance) / half_width, 0.0, 1.0)


def wave(phase: Field) -> Field:
    """Return a triangle wave of period 1 between 0 and 1."""
    return np.abs(2.0 * (phase - np.floor(phase)) - 1.0)


def disc(x: Field, y: Field, radius: Field | float) -> Field:
    """Return the distance to a circle around the origin."""
    return np.sqrt(x * x + y * y) - radius


def limb(x: Field, y: Field, ends: tuple, widths: tuple) -> Field:
    """Return the distance to a straight tapered limb with flat ends.

    Args:
        x: where to evaluate.
        y: where to evaluate.
        ends: (x0, y0, x1, y1) of its axis.
        widths: half widths at both ends.
    """
    x0, y0, x1, y1 = ends
    dx, dy = x1 - x0, y1 - y0
    length = np.sqrt(dx * dx + dy * dy) + 1e-6
    along = ((x - x0) * dx + (y - y0) * dy) / length
    across = np.abs((x - x0) * dy - (y - y0) * dx) / length
    half_width = widths[0] + (widths[1] - widths[0]) * along / length
    return np.maximum(np.maximum(across - half_width, along - length), -along)
