"""Physics of particles in liquid argon: energy loss and the charge it frees.

Energies are in MeV, lengths in cm. Formulas: Particle Data Group, Review of Particle Physics 2022,
chapter 34 (Bethe formula, delta rays, multiple scattering, bremsstrahlung); density effect of
liquid argon: Sternheimer, Berger and Seltzer, At. Data Nucl. Data Tables 30 (1984) 261;
recombination: ArgoNeuT, JINST 8 (2013) P08005. Fluctuations follow the approximation of the Landau
distribution by Moyal, Phil. Mag. 46 (1955) 263. It is a sketch of the physics: good enough that
tracks and showers have the look, the sizes and the charges of real ones.
"""

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

ELECTRON = 0.510999
MASSES = {11: ELECTRON, 13: 105.658, 22: 0.0, 111: 134.977, 211: 139.570, 2112: 939.565}
MASSES |= {2212: 938.272, 12: 0.0, 14: 0.0}

DENSITY = 1.396
_Z_OVER_A = 18 / 39.948
_EXCITATION = 188e-6
# Half of K Z/A times density: MeV / cm at beta = 1, the scale of all collision losses.
COLLISION = 0.5 * 0.307075 * _Z_OVER_A * DENSITY
RADIATION_LENGTH = 14.0
FIELD = 0.5
# Electrons above this energy are followed on their own; softer ones belong to the track.
DELTA_CUT = 1.5
# Mean energy loss of an electron above 1 MeV by collisions alone.
ELECTRON_LOSS = 2.1


def stopping_power(kinetic: Array, mass: float) -> Array:
    """Mean energy loss of a heavy charged particle, MeV / cm (Bethe with density effect)."""
    gamma = 1 + kinetic / mass
    beta_gamma2 = gamma**2 - 1
    beta2 = beta_gamma2 / gamma**2
    logarithm = np.log(2 * ELECTRON * beta_gamma2 * hardest_delta(kinetic, mass) / _EXCITATION**2)
    x = np.log10(beta_gamma2) / 2
    density = 2 * np.log(10) * x - 5.2146
    density = np.where(x < 3.0, density + 0.19559 * np.clip(3.0 - x, 0, None) ** 3, density)
    density = np.where(x < 0.2, 0.0, density)
    bracket = 0.5 * logarithm - beta2 - 0.5 * np.clip(density, 0, None)
    # Below some 0.1 MeV per nucleon the formula fails; nothing that slow gets a pixel further.
    return 2 * COLLISION / beta2 * np.clip(bracket, 0.5, None)


def hardest_delta(kinetic: Array, mass: float) -> Array:
    """Largest energy that one collision can give an electron."""
    gamma = 1 + kinetic / mass
    ratio = ELECTRON / mass
    return 2 * ELECTRON * (gamma**2 - 1) / (1 + 2 * gamma * ratio + ratio**2)


@functools.lru_cache(maxsize=8)
def _range_table(mass: float) -> tuple[Array, Array]:
    """Return kinetic energies and the ranges that belong to them."""
    kinetic = np.geomspace(0.05, 1e6, 2000)
    loss = stopping_power(kinetic, mass)
    between = np.diff(kinetic) * 0.5 * (1 / loss[1:] + 1 / loss[:-1])
    return kinetic, np.concatenate([[0.0], np.cumsum(between)]) + kinetic[0] / loss[0]


def range_of(kinetic: float, mass: float) -> float:
    """Return how far a particle gets before it stops, cm."""
    energies, ranges = _range_table(mass)
    return float(np.interp(kinetic, energies, ranges))


def kinetic_at(remaining: Array, mass: float) -> Array:
    """Return the kinetic energy of a particle that has this far to go."""
    energies, ranges = _range_table(mass)
    return np.interp(remaining, ranges, energies)


def charge(energy: Array, loss: Array | float) -> Array:
    """Share of the deposited energy that drifts away as charge, in MeV (modified box model).

    Args:
        energy: deposited energy.
        loss: energy per length, MeV / cm, which decides how much recombines.
    """
    density = 0.212 * np.maximum(loss, 0.5) / (DENSITY * FIELD)
    return energy * np.log(0.93 + density) / density


class Deposits(NamedTuple):
    """Charge that particles left in the argon.

    Attributes:
        position: [n, 3] x (drift), y (up), z (beam).
        amount: [n] charge as the energy that would free it, MeV.
        origin: int64 [n], number of the primary particle it stems from.
    """

    position: Array
    amount: Array
    origin: npt.NDArray[np.int64]

    @classmethod
    def joined(cls, parts: "list[Deposits]") -> "Deposits":
        """Return all parts as one."""
        return cls(
            np.concatenate([np.zeros((0, 3)), *(part.position for part in parts)]),
            np.concatenate([np.zeros(0), *(part.amount for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.origin for part in parts)]),
        )


class Flying(NamedTuple):
    """Electrons or photons that are still to be followed: [n, 3], [n, 3], [n], [n]."""

    position: Array
    direction: Array
    energy: Array
    origin: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray) -> "Flying":
        """Return some of them."""
        return Flying(
            self.position[which], self.direction[which], self.energy[which], self.origin[which]
        )

    @classmethod
    def joined(cls, parts: "list[Flying]") -> "Flying":
        """Return all parts as one."""
        return cls(
            np.concatenate([np.zeros((0, 3)), *(part.position for part in parts)]),
            np.concatenate([np.zeros((0, 3)), *(part.direction for part in parts)]),
            np.concatenate([np.zeros(0), *(part.energy for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.origin for part in parts)]),
        )


def unit(vectors: Array) -> Array:
    """Return vectors of length one, along the last axis."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def tilted(rng: np.random.Generator, direction: Array, cosine: Array) -> Array:
    """Return directions [n, 3] at the given angles to others, at a random azimuth."""
    axis = unit(direction)
    # Any vector that is not parallel spans the plane across.
    helper = np.where(np.abs(axis[..., :1]) < 0.7, [1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    first = unit(np.cross(axis, helper))
    second = np.cross(axis, first)
    azimuth = rng.uniform(0, 2 * np.pi, cosine.shape)[..., None]
    sine = np.sqrt(np.clip(1 - cosine**2, 0, 1))[..., None]
    across = np.cos(azimuth) * first + np.sin(azimuth) * second
    return cosine[..., None] * axis + sine * across
