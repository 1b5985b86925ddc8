"""Muons, pions and protons in liquid argon: paths that scattering bends, and delta rays."""

from typing import NamedTuple

import numpy as np

from cosmictagger.data.generator_physics import (
    COLLISION,
    DELTA_CUT,
    ELECTRON,
    RADIATION_LENGTH,
    Array,
    Deposits,
    Flying,
    charge,
    hardest_delta,
    kinetic_at,
    range_of,
    stopping_power,
    tilted,
    unit,
)

_STEP = 0.15


class Track(NamedTuple):
    """What became of a heavy charged particle."""

    deposits: Deposits
    deltas: Flying
    end: Array
    stopped: bool


def track(
    rng: np.random.Generator,
    start: Array,
    direction: Array,
    kinetic: float,
    mass: float,
    origin: int,
    longest: float,
) -> Track:
    """Follow a muon, pion or proton until it stops or has gone ``longest`` cm."""
    total = range_of(kinetic, mass)
    steps = max(1, int(np.ceil(min(total, longest) / _STEP)))
    length = min(total, longest) / steps
    energy = kinetic_at(total - (np.arange(steps) + np.float64(0.5)) * length, mass)
    gamma = 1 + energy / mass
    beta2 = 1 - 1 / gamma**2
    path = _scattered(rng, start, direction, length, gamma * mass * beta2)
    mean = stopping_power(energy, mass) * length
    scale = COLLISION / beta2 * length
    hardest = np.maximum(hardest_delta(energy, mass), DELTA_CUT)
    soft = mean - scale * np.log(hardest / DELTA_CUT)
    # Moyal: minus the logarithm of a squared normal; its mean is 1.2704.
    fluctuation = -np.log(np.square(rng.standard_normal(steps)) + 1e-12) - 1.2704
    energy_loss = np.maximum(soft + scale * np.minimum(fluctuation, DELTA_CUT / scale), 0.1 * mean)
    return Track(
        Deposits(path, charge(energy_loss, energy_loss / length), np.full(steps, origin)),
        _deltas(rng, path, direction, scale, hardest, origin),
        path[-1],
        total <= longest,
    )


def _scattered(
    rng: np.random.Generator, start: Array, direction: Array, length: float, p_beta: Array
) -> Array:
    """Return points along a path that multiple scattering bends (Highland's formula)."""
    angle = 13.6 / p_beta * np.sqrt(length / RADIATION_LENGTH)
    angle *= 1 + 0.038 * np.log(length / RADIATION_LENGTH)
    kicks = rng.standard_normal((len(p_beta), 3)) * np.clip(angle, 0, 0.3)[:, None]
    headings = unit(direction + np.cumsum(kicks, axis=0))
    return start + np.cumsum(headings * length, axis=0)


def _deltas(
    rng: np.random.Generator,
    path: Array,
    direction: Array,
    scale: Array,
    hardest: Array,
    origin: int,
) -> Flying:
    """Return electrons above the cut that a track knocks out; their number falls as 1 / T^2."""
    steps = np.repeat(np.arange(len(path)), rng.poisson(scale * (1 / DELTA_CUT - 1 / hardest)))
    most = hardest[steps]
    energy = 1 / (1 / DELTA_CUT - rng.random(len(steps)) * (1 / DELTA_CUT - 1 / most))
    cosine = np.sqrt(energy * (most + 2 * ELECTRON) / (most * (energy + 2 * ELECTRON)))
    heading = tilted(rng, np.broadcast_to(direction, (len(steps), 3)), np.minimum(cosine, 1))
    return Flying(path[steps], heading, energy, np.full(len(steps), origin))
