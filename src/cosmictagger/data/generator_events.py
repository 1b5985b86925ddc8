"""Primary particles of an event: cosmic muons and the products of one neutrino interaction.

Spectra and rates are rough, chosen for events that look like the sample's: muons as cos^2 of the
zenith angle (Review of Particle Physics 2022, chapter 30), neutrinos of the Booster beam at
0.2 to 3 GeV (MicroBooNE and SBND, arXiv:1503.01520). Kinematics are sampled, not
calculated: products share the neutrino's energy and roughly balance across the beam.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cosmictagger.data import layout
from cosmictagger.data.generator_detector import CORNERS
from cosmictagger.data.generator_physics import MASSES, Array, unit

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
    """A particle to be followed.

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
    """One neutrino interaction: what flies off, and its truth as larcv3 stores it."""

    primaries: list[Primary]
    particles: npt.NDArray[np.void]


def cosmics(rng: np.random.Generator) -> list[Primary]:
    """Muons that cross the detector within the readout, each at a time of its own."""
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
    """Return where a muon enters the volume and its direction: cos^2 of the zenith angle.

    A random point inside, followed back to the surface, counts long paths as often as they occur.
    """
    cosine = rng.random() ** (1 / 3)
    azimuth, sine = rng.uniform(0, 2 * np.pi), np.sqrt(1 - cosine**2)
    heading = np.array([sine * np.cos(azimuth), -cosine, sine * np.sin(azimuth)])
    point = rng.uniform(*CORNERS)
    distances = np.where(heading > 0, point - CORNERS[0], point - CORNERS[1]) / heading
    return point - heading * (distances.min() - 1e-6), heading


def interaction(rng: np.random.Generator) -> Interaction:
    """Return a neutrino interaction inside, in time with the beam: lepton, nucleons, pions."""
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
        primaries += _followed(rng, pdg, vertex, unit(momentum), kinetic, late)
    # Joining packs the records; larcv3's have gaps.
    return Interaction(primaries, np.concatenate(rows).astype(layout.PARTICLE))


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
    """Nucleons and pions (code, momentum in GeV) that carry about the given momentum."""
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


def _followed(
    rng: np.random.Generator, pdg: int, vertex: Array, heading: Array, kinetic: float, late: float
) -> list[Primary]:
    """Return what is to be followed of a product: itself, or what it decays or scatters into."""
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
    """Return a neutral pion's decay: back to back in its rest frame, boosted along its flight."""
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
    """Return one row of the table of particles, filled as in the sample: GeV, cm, ns."""
    row = np.zeros(1, layout.PARTICLE)
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
