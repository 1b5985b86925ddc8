"""Metrics by properties of the neutrino: energy, flavour, and current of its interaction."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

ENERGIES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)
"""Edges of the energy bins in GeV; most of the Booster beam is below 2."""

UNKNOWN = "unknown"
_FLAVOURS = {12: "nu_e", 14: "nu_mu", 16: "nu_tau"}  # by the Particle Data Group's numbers
_CURRENTS = {0: "CC", 1: "NC"}


@dataclasses.dataclass(frozen=True)
class Neutrino:
    """The neutrino of an event, as the simulation made it.

    Attributes:
        energy: GeV.
        flavour: like ``nu_mu`` or ``anti nu_e``.
        current: ``CC`` (charged), ``NC`` (neutral), or ``unknown``.
    """

    energy: float
    flavour: str
    current: str = UNKNOWN


@dataclasses.dataclass(frozen=True)
class Bin:
    """A group of events.

    Attributes:
        name: like ``0.5 to 1 GeV`` or ``nu_mu CC``.
        events: how many have the metric.
        mean: of the metric over these.
        error: standard error of the mean; NaN for one event.
    """

    name: str
    events: int
    mean: float
    error: float


Valued = Iterable[tuple[Neutrino | None, float]]
"""For each event its neutrino, None if it has none, and a metric, NaN if it has none."""


def neutrino_of(particles: NDArray[np.void] | None) -> Neutrino | None:
    """Return the first neutrino of an event's true particles; None if there is none, or no table.

    Args:
        particles: structured, with fields ``pdg`` and ``energy_init`` (GeV), and ``current_type``
            (0 charged, 1 neutral) if it is known.
    """
    fields = () if particles is None else particles.dtype.names or ()
    if particles is None or not {"pdg", "energy_init"} <= set(fields):
        return None
    rows = particles[np.isin(np.abs(particles["pdg"]), list(_FLAVOURS))]
    if not len(rows):
        return None
    code = int(rows[0]["pdg"])
    current = int(rows[0]["current_type"]) if "current_type" in fields else -1
    return Neutrino(
        energy=float(rows[0]["energy_init"]),
        flavour=("anti " if code < 0 else "") + _FLAVOURS[abs(code)],
        current=_CURRENTS.get(current, UNKNOWN),
    )


def by_energy(events: Valued, edges: Sequence[float] = ENERGIES) -> list[Bin]:
    """Return a metric by the neutrino's energy, by lower bin edge, without empty bins."""
    events = list(events)
    bins = []
    for low, high in itertools.pairwise(edges):
        name = f"above {low:g} GeV" if math.isinf(high) else f"{low:g} to {high:g} GeV"
        bins += _bin(name, events, lambda nu, low=low, high=high: low <= nu.energy < high)
    return bins


def by_interaction(events: Valued) -> list[Bin]:
    """Return a metric by flavour and current, in alphabetical order."""
    events = list(events)
    kinds = sorted({_kind(neutrino) for neutrino, _ in events if neutrino is not None})
    return [row for kind in kinds for row in _bin(kind, events, lambda nu, k=kind: _kind(nu) == k)]


def _kind(neutrino: Neutrino) -> str:
    return f"{neutrino.flavour} {neutrino.current}"


def _bin(
    name: str, events: Iterable[tuple[Neutrino | None, float]], belongs: Callable[[Neutrino], bool]
) -> list[Bin]:
    values = [value for neutrino, value in events if neutrino is not None and belongs(neutrino)]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return []
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return [Bin(name, len(values), float(np.mean(values)), float(error))]
