"""Physics of particles in liquid argon: energy loss and ionization charge.

Energies are in MeV, lengths in cm. Formulas: Particle Data Group, Review of Particle Physics 2022,
chapter 34 (Bethe formula, delta rays, multiple scattering, bremsstrahlung); density effect of
liquid argon: Sternheimer, Berger and Seltzer, At. Data Nucl. Data Tables 30 (1984) 261;
recombination: ArgoNeuT, JINST 8 (2013) P08005. Fluctuations follow the approximation of the Landau
distribution by Moyal, Phil. Mag. 46 (1955) 263. It is a sketch of the physics: good enough that
tracks and showers have the look, the sizes and the charges of real ones.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

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
    """Return the mean energy loss of a heavy charged particle, MeV / cm (Bethe, density effect)."""
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
    """Return the maximum energy that one collision can transfer to an electron."""
    gamma = 1 + kinetic / mass
    ratio = ELECTRON / mass
    return 2 * ELECTRON * (gamma**2 - 1) / (1 + 2 * gamma * ratio + ratio**2)


@functools.lru_cache(maxsize=8)
def _range_table(mass: float) -> tuple[Array, Array]:
    """Return a table of kinetic energies (MeV) and the corresponding ranges (cm)."""
    kinetic = np.geomspace(0.05, 1e6, 2000)
    loss = stopping_power(kinetic, mass)
    between = np.diff(kinetic) * 0.5 * (1 / loss[1:] + 1 / loss[:-1])
    return kinetic, np.concatenate([[0.0], np.cumsum(between)]) + kinetic[0] / loss[0]


def range_of(kinetic: float, mass: float) -> float:
    """Return the range of a particle in liquid argon, in cm."""
    energies, ranges = _range_table(mass)
    return float(np.interp(kinetic, energies, ranges))


def kinetic_at(remaining: Array, mass: float) -> Array:
    """Return the kinetic energy of a particle with a given residual range."""
    energies, ranges = _range_table(mass)
    return np.interp(remaining, ranges, energies)


def charge(energy: Array, loss: Array | float) -> Array:
    """Return the ionization charge that escapes recombination, in MeV (modified box model).

    Args:
        energy: deposited energy.
        loss: energy per length, MeV / cm, which decides how much recombines.
    """
    density = 0.212 * np.maximum(loss, 0.5) / (DENSITY * FIELD)
    return energy * np.log(0.93 + density) / density


class Deposits(NamedTuple):
    """Ionization charge that particles deposit in the argon.

    Attributes:
        position: [n, 3] x (drift), y (up), z (beam).
        amount: [n] charge as the energy that would free it, MeV.
        origin: int64 [n], number of the primary particle it stems from.
    """

    position: Array
    amount: Array
    origin: npt.NDArray[np.int64]


class Flying(NamedTuple):
    """Untracked electrons or photons: position [n, 3], direction [n, 3], energy [n], origin [n]."""

    position: Array
    direction: Array
    energy: Array
    origin: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray) -> "Flying":
        """Return the particles that a mask selects."""
        return self._make(column[which] for column in self)


NO_DEPOSITS = Deposits(np.zeros((0, 3)), np.zeros(0), np.zeros(0, np.int64))
NONE_FLYING = Flying(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0), np.zeros(0, np.int64))
_Columns = TypeVar("_Columns", Deposits, Flying)


def joined(empty: _Columns, parts: Sequence[_Columns]) -> _Columns:
    """Concatenate all parts, of which there may be none, column by column."""
    return empty._make(map(np.concatenate, zip(empty, *parts, strict=True)))


def unit(vectors: Array) -> Array:
    """Normalize vectors along the last axis."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def tilted(rng: np.random.Generator, direction: Array, cosine: Array) -> Array:
    """Rotate directions [n, 3] by given polar angles, at a random azimuth."""
    axis = unit(direction)
    # Any vector that is not parallel spans the plane across.
    helper = np.where(np.abs(axis[..., :1]) < 0.7, [1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    first = unit(np.cross(axis, helper))
    second = np.cross(axis, first)
    azimuth = rng.uniform(0, 2 * np.pi, cosine.shape)[..., None]
    sine = np.sqrt(np.clip(1 - cosine**2, 0, 1))[..., None]
    across = np.cos(azimuth) * first + np.sin(azimuth) * second
    return cosine[..., None] * axis + sine * across


_STEP = 0.15


class Track(NamedTuple):
    """The simulated track of a muon, pion or proton."""

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
    """Track a muon, pion or proton until it stops or has travelled ``longest`` cm."""
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
    """Return the points of a path bent by multiple scattering (Highland's formula)."""
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
    """Return the delta electrons above the cut that a track knocks out, with a 1 / T^2 spectrum."""
    steps = np.repeat(np.arange(len(path)), rng.poisson(scale * (1 / DELTA_CUT - 1 / hardest)))
    most = hardest[steps]
    energy = 1 / (1 / DELTA_CUT - rng.random(len(steps)) * (1 / DELTA_CUT - 1 / most))
    cosine = np.sqrt(energy * (most + 2 * ELECTRON) / (most * (energy + 2 * ELECTRON)))
    heading = tilted(rng, np.broadcast_to(direction, (len(steps), 3)), np.minimum(cosine, 1))
    return Flying(path[steps], heading, energy, np.full(len(steps), origin))


# Photons in liquid argon, rounded: energy, mean free path, share of pair production.
_PHOTONS = np.array(
    [
        (0.2, 6.3, 0.0),
        (0.5, 9.2, 0.0),
        (1.0, 12.5, 0.0),
        (2.0, 17.6, 0.03),
        (5.0, 25.0, 0.17),
        (10.0, 28.0, 0.38),
        (20.0, 27.0, 0.6),
        (50.0, 24.0, 0.82),
        (100.0, 21.7, 0.91),
        (1000.0, 19.0, 0.99),
    ]
)


def cascade(
    rng: np.random.Generator, electrons: Flying, photons: Flying, inside: Array
) -> Deposits:
    """Simulate an electromagnetic cascade until its energy is used up.

    All electrons of an event take each step together. Those emitted as photons come back as
    electrons where the photon converts or scatters.

    Args:
        rng: source of random numbers.
        electrons: electrons and positrons.
        photons: photons.
        inside: [2, 3] corners of the volume; what leaves it is not followed.
    """
    step = 0.3
    alive = joined(NONE_FLYING, [electrons, _converted(rng, photons, inside)])
    deposits = []
    while len(alive.energy):
        energy_loss = ELECTRON_LOSS * step * rng.gamma(12.0, 1 / 12.0, len(alive.energy))
        energy_loss = np.minimum(energy_loss, alive.energy)
        middle = alive.position + alive.direction * (step / 2)
        deposits.append(Deposits(middle, charge(energy_loss, ELECTRON_LOSS), alive.origin))
        energy, emitted = _radiated(rng, alive, step, energy_loss)
        angle = 13.6 / np.maximum(energy, 0.5) * np.sqrt(step / RADIATION_LENGTH)
        kicks = rng.standard_normal(alive.position.shape) * np.clip(angle, 0, 0.9)[:, None]
        heading = unit(alive.direction + kicks)
        position = alive.position + alive.direction * step
        keep = (energy > 0.2) & ((position > inside[0]) & (position < inside[1])).all(axis=1)
        alive = Flying(position, heading, energy, alive.origin).chosen(keep)
        if len(emitted.energy):
            alive = joined(NONE_FLYING, [alive, _converted(rng, emitted, inside)])
    return joined(NO_DEPOSITS, deposits)


def _radiated(
    rng: np.random.Generator, electrons: Flying, step: float, energy_loss: Array
) -> tuple[Array, Flying]:
    """Return electron energies after a step, and the bremsstrahlung photons."""
    softest = 1.0
    energy = electrons.energy - energy_loss
    logarithm = np.log(np.maximum(energy, softest) / softest)
    radiating = rng.random(len(energy)) < step / RADIATION_LENGTH * 4 / 3 * logarithm
    share = np.exp(-rng.random(len(energy)) * logarithm)
    # The spectrum falls faster than 1/k towards its end (1 - y + 3/4 y^2).
    radiating &= rng.random(len(energy)) < 1 - share + 0.75 * share**2
    photon_energy = np.where(radiating, share * energy, 0.0)
    emitted = Flying(electrons.position, electrons.direction, photon_energy, electrons.origin)
    return energy - photon_energy, emitted.chosen(radiating)


def _converted(rng: np.random.Generator, photons: Flying, inside: Array) -> Flying:
    """Return the electrons that photons produce, after their flight and Compton scattering."""
    electrons = []
    while len(photons.energy):
        energy = photons.energy
        free, pairs = (np.interp(energy, _PHOTONS[:, 0], _PHOTONS[:, k]) for k in (1, 2))
        flight = rng.exponential(free)
        position = photons.position + photons.direction * flight[:, None]
        within = ((position > inside[0]) & (position < inside[1])).all(axis=1)
        pair = rng.random(len(energy)) < pairs
        ratio = energy / ELECTRON
        electron_energy = np.where(
            pair, energy, energy * rng.random(len(energy)) * 2 * ratio / (1 + 2 * ratio)
        )
        share = np.where(pair, rng.random(len(energy)), 1.0)
        spread = np.where(
            pair, 1 - 0.5 * np.minimum(1.0, 1 / energy**2), rng.uniform(0.3, 1, len(energy))
        )
        heading = tilted(rng, photons.direction, spread)
        first = Flying(position, heading, electron_energy * share, photons.origin)
        second = Flying(position, heading, electron_energy * (1 - share), photons.origin)
        electrons += [first.chosen(within), second.chosen(within & pair)]
        scattered = tilted(rng, photons.direction, spread)
        left = Flying(position, scattered, energy - electron_energy, photons.origin)
        photons = left.chosen(within & ~pair & (left.energy > 0.3))
    return joined(NONE_FLYING, electrons)
