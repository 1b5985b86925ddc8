"""Generator of simulated events: cosmic muons and one neutrino interaction."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cosmictagger.data import generator_physics as physics
from cosmictagger.data import larcv
from cosmictagger.data.generator_physics import MASSES, Array, Deposits, Track, cascade, unit
from cosmictagger.data.generator_physics import track as track_of
from cosmictagger.data.larcv import IMAGE, LABEL, VERTEX, Event, Frame, Plane, event_writer
from cosmictagger.errors import ConfigError
from cosmictagger.recording import progress

FULL_SIZE = (1280, 2048)
CORNERS = np.array([[-200.0, -200.0, 0.0], [200.0, 200.0, 500.0]])
THRESHOLD = 5.0

_WIRE_PITCH = 0.3
_PIXELS_PER_CM = 3.125
PIXELS_PER_MICROSECOND = 0.5
_ANODE_PIXEL = 15.0
_FIRST_WIRE = (31, 31, 191)
_LAST_WIRE = (2016, 2016, 1856)
# Centimetres: along the drift from the cathode, across the wires from the first of them.
FRAME = Frame(
    np.array([[FULL_SIZE[0] / _PIXELS_PER_CM, FULL_SIZE[1] * _WIRE_PITCH]] * 3),
    np.array([[-FULL_SIZE[0] / 2 / _PIXELS_PER_CM, -first * _WIRE_PITCH] for first in _FIRST_WIRE]),
)
# Image units per MeV of charge: a track along the beam then has the values of the sample.
_GAIN = 175.0
# Diffusion in cm per square root of the drift in cm, and the width of the electronics' pulse.
_DIFFUSION_ALONG, _DIFFUSION_ACROSS = 0.0078, 0.0105
_PULSE = 0.175
# Share of a pulse that comes late and far out; there is no true charge below it.
_TAIL = 0.08
_GAIN_SPREAD = 0.02
_NOISE_ON_CHARGE = 1.0
# Pixels with noise above threshold in (lower, upper) half, at full size: induction wires are noisy
# in the one volume where they see the other plane's pick-up.
_NOISE_PIXELS = ((1100, 11500), (11500, 1100), (210, 250))
_NOISE_SCALE = 0.75
_NOISE_RUNS = np.array([0.815, 0.14, 0.03, 0.015])
_DEAD_SHARE = 0.006


Response = tuple[Plane, Plane]
"""Image and label of one plane."""


class Detector:
    """A simulated detector with images of a given size.

    A smaller image is the same detector with coarser pixels. Values are divided by the factor, so
    that tracks keep their brightness, and the number of noise pixels as well, so that noise keeps
    its share of all pixels. As tracks are lines, the share of pixels that are not zero grows with
    the factor, just as when a full image is downsampled.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self.scale = (size[0] / FULL_SIZE[0], size[1] / FULL_SIZE[1])
        # The same wires are dead in every file: the detector does not depend on the seed.
        rng = np.random.default_rng(0xDEAD)
        self.dead = [rng.random(size[1]) < _DEAD_SHARE for _ in range(3)]

    def respond(
        self, rng: np.random.Generator, deposits: Deposits, late: Array, neutrino: npt.NDArray
    ) -> list[Response]:
        """Return images and labels of the three wire planes for deposited charge.

        Args:
            rng: source of random numbers.
            deposits: the charge.
            late: [n] how much later than the trigger the charge was made, microseconds.
            neutrino: bool [n], whether it belongs to the neutrino.
        """
        x, y, z = deposits.position.T
        inside = ((deposits.position > CORNERS[0]) & (deposits.position < CORNERS[1])).all(axis=1)
        drift = 200.0 - np.abs(x)
        spread = rng.standard_normal((2, len(x)))
        across = spread[0] * _DIFFUSION_ACROSS * np.sqrt(np.clip(drift, 0, None))
        along = spread[1] * _DIFFUSION_ALONG * np.sqrt(np.clip(drift, 0, None))
        time = _ANODE_PIXEL + (drift + along) * _PIXELS_PER_CM + late * PIXELS_PER_MICROSECOND
        recorded = inside & (time >= 0) & (time < FULL_SIZE[0] / 2)
        row = np.where(x < 0, time, FULL_SIZE[0] - time)[recorded]
        responses = []
        for plane in range(3):
            wires = _across_wires(plane, y, z) + across
            column = _FIRST_WIRE[plane] + wires[recorded] / _WIRE_PITCH
            # What diffuses beyond the last wire is collected by it.
            column = np.clip(column, _FIRST_WIRE[plane], _LAST_WIRE[plane])
            amount = deposits.amount[recorded] * _GAIN
            responses.append(
                self._plane(rng, plane, column, row, amount, neutrino[recorded], (x < 0)[recorded])
            )
        return responses

    def _plane(
        self,
        rng: np.random.Generator,
        plane: int,
        column: Array,
        row: Array,
        amount: Array,
        neutrino: npt.NDArray,
        lower: npt.NDArray,
    ) -> Response:
        height, width = self.size
        columns = (column * self.scale[1]).astype(np.int64)
        ids, weights, near = self._pulses(columns, row * self.scale[0], amount, lower)
        signal = np.bincount(ids.ravel(), weights.ravel(), height * width)
        noise_ids, noise = self._noise(rng, plane)
        hit = np.flatnonzero(signal > 0.5)
        # Which class a pixel has: the one that left more charge there, if there is any to speak of.
        place = np.zeros(height * width, np.int32)
        place[hit] = np.arange(len(hit))
        close = weights * near
        of_neutrino = np.bincount(place[ids[neutrino]].ravel(), close[neutrino].ravel(), len(hit))
        of_cosmic = np.bincount(place[ids[~neutrino]].ravel(), close[~neutrino].ravel(), len(hit))
        classes = np.where(of_neutrino > of_cosmic, 2, 1) * (
            of_neutrino + of_cosmic > THRESHOLD / 2
        )
        gains = 1 + _GAIN_SPREAD * rng.standard_normal(width)
        values = signal[hit] * gains[hit // height]
        values += _NOISE_ON_CHARGE * rng.standard_normal(len(hit))
        return self._joined(plane, (hit, values, classes), (noise_ids, noise))

    def _pulses(
        self, columns: npt.NDArray, row: Array, amount: Array, lower: npt.NDArray
    ) -> tuple[npt.NDArray, Array, npt.NDArray]:
        """Return [n, 7] pixel ids and amounts of pulses in time, and a mask of their centres."""
        height, width = self.size
        centre = np.floor(row)
        rows = centre[:, None] + np.arange(-3, 4)
        distance = rows + 0.5 - row[:, None]
        sigma = max(_PULSE * _PIXELS_PER_CM * self.scale[0], 0.4)
        weights = np.exp(-0.5 * np.square(distance / sigma))
        weights /= weights.sum(axis=1, keepdims=True)
        near = np.abs(distance) < 1.2 * sigma + 0.5
        tail = np.exp(-0.5 * np.square(distance / (2.2 * sigma)))
        weights = (1 - _TAIL) * weights + _TAIL * tail / tail.sum(axis=1, keepdims=True)
        # A pulse does not cross from one volume's readout into the other's.
        middle = height // 2
        first = np.where(lower, 0, middle)[:, None]
        valid = (rows >= first) & (rows < first + middle) & (columns < width)[:, None]
        amounts = weights * (amount * max(self.scale))[:, None] * valid
        ids = columns[:, None] * height + np.clip(rows, 0, height - 1).astype(np.int64)
        return np.clip(ids, 0, height * width - 1), amounts, near

    def _noise(self, rng: np.random.Generator, plane: int) -> tuple[npt.NDArray, Array]:
        """Return noise pixels: short runs in time whose values fall off from the threshold."""
        height, width = self.size
        half = height // 2
        ids = []
        for side, expected in enumerate(_NOISE_PIXELS[plane]):
            mean_run = float(_NOISE_RUNS @ np.arange(1, 5))
            count = rng.poisson(expected * max(self.scale) / mean_run)
            limits = np.array([_FIRST_WIRE[plane], _LAST_WIRE[plane] + 1]) * self.scale[1]
            column = rng.uniform(limits[0], limits[1], count).astype(np.int64)
            start = rng.integers(side * half, (side + 1) * half, count)
            runs = 1 + rng.choice(len(_NOISE_RUNS), count, p=_NOISE_RUNS)
            within = np.arange(runs.sum()) - np.repeat(np.cumsum(runs) - runs, runs)
            row = np.repeat(start, runs) + within
            fits = row < (side + 1) * half
            ids.append((np.repeat(np.minimum(column, width - 1), runs) * height + row)[fits])
        unique_ids = np.unique(np.concatenate(ids))
        # Mostly the tail of a normal distribution, now and then a spike.
        values = THRESHOLD + rng.exponential(_NOISE_SCALE, len(unique_ids))
        return unique_ids, values + (rng.random(len(unique_ids)) < 0.02) * rng.exponential(
            3.0, len(unique_ids)
        )

    def _joined(
        self,
        plane: int,
        charge: tuple[npt.NDArray, Array, npt.NDArray],
        noise: tuple[npt.NDArray, Array],
    ) -> Response:
        """Merge charge and noise into pixels above threshold on live wires, ids ascending."""
        hit, values, classes = charge
        # Noise on a pixel with charge adds nothing to see; below threshold it stands alone.
        above = values >= THRESHOLD
        alone = ~np.isin(noise[0], hit[above])
        ids = np.concatenate([hit[above], noise[0][alone]])
        level = np.concatenate([values[above], noise[1][alone]]).astype(np.float32)
        label = np.concatenate([classes[above], np.zeros(alone.sum())]).astype(np.float32)
        order = np.argsort(ids)
        order = order[~self.dead[plane][ids[order] // self.size[0]]]
        sorted_ids = ids[order].astype(np.uint64)
        return Plane(sorted_ids, level[order]), Plane(sorted_ids, label[order])


def _across_wires(plane: int, y: Array, z: Array) -> Array:
    """Return the distance from a plane's first wire, cm."""
    up = (-(0.75**0.5), 0.75**0.5, 0.0)[plane]
    return z * (1.0 if plane == 2 else 0.5) + (up * y + abs(up) * 200.0)


def vertex_boxes(particles: npt.NDArray[np.void]) -> list[Array]:
    """Return where the vertex of the neutrino is seen, [1, 2] of each plane in ``FRAME``.

    Late charge looks as if it had drifted further; empty where there is no neutrino.
    """
    vertex = particles["vtx"][:1]
    late = vertex["t"] / 1000 * PIXELS_PER_MICROSECOND / _PIXELS_PER_CM
    drift = vertex["x"] - np.sign(vertex["x"]) * late
    wires = (_across_wires(plane, vertex["y"], vertex["z"]) for plane in range(3))
    return [np.stack([drift, each], axis=1) for each in wires]


NEUTRINO = 0
# Of 100 neutrinos: flavour, current (0 charged, 1 neutral), GENIE code of the interaction.
_KINDS = (
    (40, 14, 0, 1001),
    (12, 14, 0, 1003),
    (26, 12, 0, 1001),
    (8, 12, 0, 1003),
    (7, 14, 1, 1002),
    (7, 14, 1, 1006),
)
_NONE = 2**32 - 1
# Microseconds around the trigger in which a muon leaves charge in the image.
_EARLIEST, _LATEST = -1150.0, 1200.0
_MEAN_MUONS, _FEWEST_MUONS, _MOST_MUONS = 6.2, 3, 10
# An interaction that leaves less is not seen, and files of real events do not keep it. MeV.
_LEAST_VISIBLE = 200.0


class Primary(NamedTuple):
    """A primary particle to simulate.

    Attributes:
        pdg: particle code.
        start: [3] cm.
        direction: [3] of length one.
        kinetic: MeV; the energy of a photon.
        late: microseconds after the trigger.
        neutrino: whether it stems from the neutrino.
    """

    pdg: int
    start: Array
    direction: Array
    kinetic: float
    late: float
    neutrino: bool


class Interaction(NamedTuple):
    """A simulated neutrino interaction: primary particles and larcv3 truth records."""

    primaries: list[Primary]
    particles: npt.NDArray[np.void]


def cosmics(rng: np.random.Generator) -> list[Primary]:
    """Return cosmic muons that cross the detector within the readout, at random times."""
    primaries = []
    count = int(np.clip(rng.poisson(_MEAN_MUONS), _FEWEST_MUONS, _MOST_MUONS))
    for _ in range(count):
        start, heading = _muon_path(rng)
        # Flat up to some GeV, then a power law.
        momentum = (
            500.0 + 3500.0 * rng.gamma(1.0) if rng.random() < 0.75 else 4000 * (1 + rng.pareto(1.7))
        )
        kinetic = float(np.hypot(momentum, MASSES[13]) - MASSES[13])
        if rng.random() < 0.15:
            kinetic = rng.uniform(60.0, 700.0)
        late = rng.uniform(_EARLIEST, _LATEST)
        primaries.append(Primary(13, start, heading, kinetic, late, False))
    return primaries


def _muon_path(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return entry point and direction of a cosmic muon, cos^2-distributed in the zenith angle.

    A random point inside, followed back to the surface, counts long paths as often as they occur.
    """
    cosine = rng.random() ** (1 / 3)
    azimuth, sine = rng.uniform(0, 2 * np.pi), np.sqrt(1 - cosine**2)
    heading = np.array([sine * np.cos(azimuth), -cosine, sine * np.sin(azimuth)])
    point = rng.uniform(*CORNERS)
    distances = np.where(heading > 0, point - CORNERS[0], point - CORNERS[1]) / heading
    return point - heading * (distances.min() - 1e-6), heading


def interaction(rng: np.random.Generator) -> Interaction:
    """Simulate a neutrino interaction in the detector: lepton, nucleons, pions."""
    while True:
        candidate = _any_interaction(rng)
        if sum(primary.kinetic for primary in candidate.primaries) >= _LEAST_VISIBLE:
            return candidate


def _any_interaction(rng: np.random.Generator) -> Interaction:
    weights = np.array([kind[0] for kind in _KINDS], float)
    _, flavour, current, code = _KINDS[rng.choice(len(_KINDS), p=weights / weights.sum())]
    energy = float(np.clip(0.25 + rng.gamma(3.2, 0.27), 0.3, 4.0))
    margin = np.array([15.0, 15.0, 15.0])
    vertex = rng.uniform(CORNERS[0] + margin, CORNERS[1] - margin - [0, 0, 60.0])
    late = float(rng.uniform(1.9, 10.0))
    lepton, hadrons = _shared(rng, flavour, current, energy)
    products = [lepton, *_hadrons(rng, hadrons, resonant=code in (1003, 1006))]
    rows = [_row(0, flavour, np.array([0.0, 0.0, energy]), energy, vertex, late)]
    rows[0]["current_type"], rows[0]["interaction_type"] = current, code
    primaries = []
    for number, (pdg, momentum) in enumerate(products):
        total = float(np.hypot(np.linalg.norm(momentum), MASSES[pdg] / 1000))
        rows.append(_row(number + 1, pdg, momentum, total, vertex, late))
        kinetic = total * 1000 - MASSES[pdg]
        primaries += _products(rng, pdg, vertex, unit(momentum), kinetic, late)
    # Joining packs the records; larcv3's have gaps.
    return Interaction(primaries, np.concatenate(rows).astype(larcv.PARTICLE))


def _shared(
    rng: np.random.Generator, flavour: int, current: int, energy: float
) -> tuple[tuple[int, Array], Array]:
    """Return the outgoing lepton (code, momentum in GeV) and the momentum left to the hadrons."""
    pdg = flavour if current else flavour - 1
    mass = MASSES[pdg] / 1000
    share = rng.beta(2.0, 2.0) if current else rng.beta(3.5, 1.6)
    lepton_energy = max(energy * share, mass + 0.06)
    momentum = np.sqrt(lepton_energy**2 - mass**2)
    across = min(0.35 * np.sqrt(rng.exponential(1.0)), 0.95 * momentum)
    azimuth = rng.uniform(0, 2 * np.pi)
    along = np.sqrt(momentum**2 - across**2) * (1 if rng.random() < 0.95 else -1)
    lepton = np.array([across * np.cos(azimuth), across * np.sin(azimuth), along])
    return (pdg, lepton), np.array([0.0, 0.0, energy]) - lepton


def _hadrons(rng: np.random.Generator, total: Array, resonant: bool) -> list[tuple[int, Array]]:
    """Return nucleons and pions (code, momentum in GeV) that carry about a given momentum."""
    fermi = rng.normal(0, 0.12, 3)
    hadrons = []
    left = total + fermi
    if resonant:
        pion = left * rng.uniform(0.25, 0.6) + rng.normal(0, 0.12, 3)
        hadrons.append((111 if rng.random() < 0.5 else 211, pion))
        left = left - pion
    # A nucleon of more than 1.2 GeV/c would not fit the energy that is there.
    left = left * min(1.0, 1.2 / np.linalg.norm(left))
    hadrons.append((2212 if rng.random() < 0.75 else 2112, left))
    for _ in range(rng.poisson(1.6)):
        hadrons.append((2212 if rng.random() < 0.5 else 2112, rng.normal(0, 0.15, 3)))
    return hadrons


def _products(
    rng: np.random.Generator, pdg: int, vertex: Array, heading: Array, kinetic: float, late: float
) -> list[Primary]:
    """Return the primaries to track for an interaction product, after decay or scattering."""
    if pdg == 111:
        return _two_photons(rng, vertex, heading, kinetic, late)
    if pdg == 2112:
        # Neutrons show themselves as protons that they hit somewhere else.
        knocked = []
        for _ in range(rng.poisson(min(3.0, kinetic / 60.0))):
            place = vertex + unit(heading + rng.normal(0, 0.4, 3)) * rng.exponential(55.0)
            energy = min(kinetic, 8.0 + rng.exponential(25.0))
            knocked.append(Primary(2212, place, unit(rng.normal(0, 1, 3)), energy, late, True))
        return knocked
    return [] if pdg in (12, 14) else [Primary(pdg, vertex, heading, kinetic, late, True)]


def _two_photons(
    rng: np.random.Generator, vertex: Array, heading: Array, kinetic: float, late: float
) -> list[Primary]:
    """Return the two photons of a neutral pion's decay, boosted along its flight."""
    mass = MASSES[111]
    gamma = 1 + kinetic / mass
    boost = np.sqrt(gamma**2 - 1)
    first = unit(rng.normal(0, 1, 3))
    photons = []
    for axis in (first, -first):
        along = axis @ heading
        momentum = mass / 2 * (axis + heading * ((gamma - 1) * along + boost))
        energy = float(np.linalg.norm(momentum))
        photons.append(Primary(22, vertex, momentum / energy, energy, late, True))
    return photons


def _row(
    number: int, pdg: int, momentum: Array, energy: float, vertex: Array, late: float
) -> npt.NDArray[np.void]:
    """Return a row of the larcv3 particle table: momentum and energy in GeV, cm, ns."""
    row = np.zeros(1, larcv.PARTICLE)
    row["id"], row["trackid"], row["pdg"] = number, number, pdg
    row["mcst_index"] = row["mct_index"] = 2**16 - 1
    row["shape"] = 2
    row["current_type"] = row["interaction_type"] = -1
    row["px"], row["py"], row["pz"] = momentum
    row["vtx"]["x"], row["vtx"]["y"], row["vtx"]["z"] = vertex
    row["vtx"]["t"] = late * 1000
    row["dist_travel"] = -1
    row["energy_init"] = energy
    row["process"] = b"primary"
    row["parent_trackid"] = _NONE if number == NEUTRINO else 0
    row["ancestor_trackid"] = _NONE
    return row


VERSION = 2
"""Version of the generator, part of cache names; raise it if a seed gives another file."""

_COSMIC_ONLY = 0xC05  # of the random numbers that leave out neutrinos

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
    cosmic_only: float = 0.0,
) -> None:
    """Write a larcv3 file of simulated events.

    The file appears when it is complete; an interrupted run leaves nothing.

    Args:
        path: the file to make or to replace.
        events: how many.
        seed: another seed gives other events; the same one gives the same file.
        size: (H, W) of the images; smaller ones show the same detector with coarser pixels.
        cosmic_only: share of events from which the neutrino is left out; the others stay.
    """
    if not 0 <= cosmic_only <= 1:
        raise ConfigError(f"data.cosmic_only={cosmic_only} was asked for; it is a share, 0 to 1.")
    if events < 1:
        raise ConfigError(f"{events} events were asked for; at least 1 is needed.")
    if seed < 0:
        raise ConfigError(f"The seed is {seed}; it has to be 0 or more.")
    detector = _detector(size)
    with event_writer(path, size, particles=True, boxes=[VERTEX], frame=FRAME) as writer:
        for number in progress(range(events), "Simulating events"):
            writer.write(_simulated(number, seed, detector, cosmic_only))


def _detector(size: tuple[int, int]) -> Detector:
    height, width = size
    if min(size) < _SMALLEST or height % 2 or height > FULL_SIZE[0] or width > FULL_SIZE[1]:
        raise ConfigError(
            f"Images of {height} x {width} were asked for; rows have to be even, {_SMALLEST} to "
            f"{FULL_SIZE[0]}, columns {_SMALLEST} to {FULL_SIZE[1]}."
        )
    return Detector((height, width))


def _simulated(number: int, seed: int, detector: Detector, cosmic_only: float = 0.0) -> Event:
    rng = np.random.default_rng([seed, number])
    neutrino = interaction(rng)
    if np.random.default_rng([seed, number, _COSMIC_ONLY]).random() < cosmic_only:
        neutrino = Interaction([], neutrino.particles[:0])
    primaries = [*neutrino.primaries, *cosmics(rng)]
    deposits = _followed(rng, primaries)
    late = np.array([primary.late for primary in primaries])
    of_neutrino = np.array([primary.neutrino for primary in primaries])
    origin = deposits.origin
    planes = detector.respond(rng, deposits, late[origin], of_neutrino[origin])
    images, labels = map(list, zip(*planes, strict=True))
    boxes = {VERTEX: vertex_boxes(neutrino.particles)}
    return Event({IMAGE: images, LABEL: labels}, (1, 0, number), neutrino.particles, boxes)


def _followed(rng: np.random.Generator, primaries: Sequence[Primary]) -> physics.Deposits:
    """Simulate all particles of an event and return the charge that they deposit."""
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
    none = physics.NONE_FLYING
    flying = physics.joined(none, electrons), physics.joined(none, photons)
    return physics.joined(physics.NO_DEPOSITS, [*deposits, cascade(rng, *flying, _INSIDE)])


def _heavy(rng: np.random.Generator, primary: Primary, origin: int) -> Track:
    """Track a muon, pion or proton up to the surface or to its interaction with a nucleus."""
    longest = _DIAGONAL
    if primary.pdg in (211, 2212):
        free = _PION_INTERACTION if primary.pdg == 211 else _PROTON_INTERACTION
        longest = min(longest, max(1.0, rng.exponential(free)))
    mass = physics.MASSES[primary.pdg]
    return track_of(rng, primary.start, primary.direction, primary.kinetic, mass, origin, longest)


def _hard_photon(
    rng: np.random.Generator, primary: Primary, track: Track, origin: int
) -> list[physics.Flying]:
    """Return a hard bremsstrahlung photon of a muon above 2 GeV, with 8 % probability."""
    if primary.pdg != 13 or primary.kinetic < 2000 or rng.random() > 0.08:
        return []
    start = track.deposits.position[rng.integers(len(track.deposits.position))]
    energy = min(0.3 * primary.kinetic, 50.0 * (1 + rng.pareto(1.0)))
    return [_flying(start, primary.direction, energy, origin)]


def _flying(
    start: physics.Array, direction: physics.Array, energy: float, origin: int
) -> physics.Flying:
    return physics.Flying._make(np.array([each]) for each in (start, direction, energy, origin))
