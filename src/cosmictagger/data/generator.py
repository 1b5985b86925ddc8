"""Simulated events in the layout of real ones: the data that comes with the application.

Cosmic muons and one neutrino interaction in a detector like SBND, three projections of one event
in three dimensions. An event depends on the seed and on its number alone, so the first events of a
long file are those of a short one.
"""

import os
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from cosmictagger.data import generator_physics as physics
from cosmictagger.data.generator_cascade import cascade
from cosmictagger.data.generator_detector import CORNERS, FULL_SIZE, Detector
from cosmictagger.data.generator_events import Primary, cosmics, interaction
from cosmictagger.data.generator_tracks import Track
from cosmictagger.data.generator_tracks import track as track_of
from cosmictagger.data.layout import IMAGE, LABEL
from cosmictagger.data.writer import Event, EventWriter
from cosmictagger.errors import DataError

VERSION = 1
"""Goes up whenever the same seed gives other events, so that kept files are not taken for these."""

# Particles leave the volume by so much before they are given up: what is outside leaves no charge,
# but a track that grazes the surface may come back.
_MARGIN = 2.0
_INSIDE = CORNERS + np.array([[-_MARGIN], [_MARGIN]])
_DIAGONAL = float(np.linalg.norm(CORNERS[1] - CORNERS[0]))
_PION_INTERACTION, _PROTON_INTERACTION = 70.0, 80.0
_SMALLEST = 32


def generate(
    path: str | os.PathLike[str],
    events: int,
    seed: int = 0,
    size: tuple[int, int] = FULL_SIZE,
    progress: bool = True,
) -> None:
    """Write a file of simulated events.

    The file appears when it is complete; an interrupted run leaves nothing.

    Args:
        path: the file to make or to replace.
        events: how many.
        seed: another seed gives other events; the same one gives the same file.
        size: (H, W) of the images; smaller ones show the same detector with coarser pixels.
        progress: show a progress bar, where standard error is a terminal.
    """
    if events < 1:
        raise DataError(f"{events} events were asked for; at least 1 is needed.")
    _check_seed(seed)
    detector = _detector(size)
    with EventWriter(path, size, (IMAGE, LABEL), particles=True) as writer:
        off = None if progress else True  # None: where nobody sees it
        for number in tqdm(range(events), "generating", unit="event", disable=off):
            writer.write(_simulated(number, seed, detector))


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise DataError(f"The seed is {seed}; it has to be 0 or more.")


def _detector(size: tuple[int, int]) -> Detector:
    height, width = size
    if min(size) < _SMALLEST or height % 2 or height > FULL_SIZE[0] or width > FULL_SIZE[1]:
        raise DataError(
            f"Images of {height} x {width} were asked for; rows have to be even, {_SMALLEST} to "
            f"{FULL_SIZE[0]}, columns {_SMALLEST} to {FULL_SIZE[1]}."
        )
    return Detector((height, width))


def _simulated(number: int, seed: int, detector: Detector) -> Event:
    rng = np.random.default_rng([seed, number])
    neutrino = interaction(rng)
    primaries = [*neutrino.primaries, *cosmics(rng)]
    deposits = _followed(rng, primaries)
    late = np.array([primary.late for primary in primaries])
    of_neutrino = np.array([primary.neutrino for primary in primaries])
    origin = deposits.origin
    planes = detector.respond(rng, deposits, late[origin], of_neutrino[origin])
    return Event(
        {IMAGE: [plane.image for plane in planes], LABEL: [plane.label for plane in planes]},
        (1, 0, number),
        neutrino.particles,
    )


def _followed(rng: np.random.Generator, primaries: Sequence[Primary]) -> physics.Deposits:
    """Return the charge that all particles of an event leave."""
    deposits: list[physics.Deposits] = []
    electrons: list[physics.Flying] = []
    photons: list[physics.Flying] = []
    for origin, primary in enumerate(primaries):
        if primary.pdg in (11, 22):
            kind = electrons if primary.pdg == 11 else photons
            kind.append(_flying(primary.start, primary.direction, primary.kinetic, origin))
            continue
        track = _heavy(rng, primary, origin)
        deposits.append(track.deposits)
        electrons.append(track.deltas)
        if track.stopped and primary.pdg in (13, 211):
            # The decay electron of a muon at rest, up to half the muon's mass.
            energy = 52.8 * rng.beta(3.0, 1.4)
            electrons.append(_flying(track.end, physics.unit(rng.normal(0, 1, 3)), energy, origin))
        photons += _hard_photon(rng, primary, track, origin)
    showers = cascade(
        rng, physics.Flying.joined(electrons), physics.Flying.joined(photons), _INSIDE
    )
    return physics.Deposits.joined([*deposits, showers])


def _heavy(rng: np.random.Generator, primary: Primary, origin: int) -> Track:
    """Return a muon, pion or proton, up to the surface or to its interaction with a nucleus."""
    longest = _DIAGONAL
    if primary.pdg in (211, 2212):
        free = _PION_INTERACTION if primary.pdg == 211 else _PROTON_INTERACTION
        longest = min(longest, max(1.0, rng.exponential(free)))
    mass = physics.MASSES[primary.pdg]
    return track_of(rng, primary.start, primary.direction, primary.kinetic, mass, origin, longest)


def _hard_photon(
    rng: np.random.Generator, primary: Primary, track: Track, origin: int
) -> list[physics.Flying]:
    """Now and then a muon of high energy radiates so much that a shower starts on its way."""
    if primary.pdg != 13 or primary.kinetic < 2000 or rng.random() > 0.08:
        return []
    start = track.deposits.position[rng.integers(len(track.deposits.position))]
    energy = min(0.3 * primary.kinetic, 50.0 * (1 + rng.pareto(1.0)))
    return [_flying(start, primary.direction, energy, origin)]


def _flying(
    start: physics.Array, direction: physics.Array, energy: float, origin: int
) -> physics.Flying:
    return physics.Flying(
        np.array([start]), np.array([direction]), np.array([energy]), np.array([origin])
    )
