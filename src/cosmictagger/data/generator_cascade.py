"""Electrons and photons in liquid argon: showers, delta rays, the electrons of decaying muons."""

import numpy as np

from cosmictagger.data.generator_physics import (
    ELECTRON,
    ELECTRON_LOSS,
    RADIATION_LENGTH,
    Array,
    Deposits,
    Flying,
    charge,
    tilted,
    unit,
)

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
    """Follow electrons and photons, and all that they make, until their energy is used up.

    All electrons of an event take each step together. Those emitted as photons come back as
    electrons where the photon converts or scatters.

    Args:
        rng: source of random numbers.
        electrons: electrons and positrons.
        photons: photons.
        inside: [2, 3] corners of the volume; what leaves it is not followed.
    """
    step = 0.3
    alive = Flying.joined([electrons, _converted(rng, photons, inside)])
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
            alive = Flying.joined([alive, _converted(rng, emitted, inside)])
    return Deposits.joined(deposits)


def _radiated(
    rng: np.random.Generator, electrons: Flying, step: float, energy_loss: Array
) -> tuple[Array, Flying]:
    """Return the energy left to the electrons after a step, and the photons that they radiated."""
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
    """Return the electrons that photons make, after their flight and any Compton scattering."""
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
        left = Flying(
            position,
            tilted(rng, photons.direction, spread),
            energy - electron_energy,
            photons.origin,
        )
        photons = left.chosen(within & ~pair & (left.energy > 0.3))
    return Flying.joined(electrons)
