"""What the report needs of a pass, in memory that grows by a few numbers per event."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cosmictagger.results.events import PLANES

CLASSES = 3
METRICS = ("Total_Accuracy", "Cosmic_IoU", "Neutrino_IoU", "Non_Bkg_Accuracy", "mIoU")
_ENERGIES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))  # GeV


@dataclass(frozen=True)
class Neutrino:
    """The neutrino of an event, as the simulation made it.

    Attributes:
        energy: GeV.
        flavour: like ``"nu_mu"`` or ``"anti nu_e"``.
        current: ``"CC"``, ``"NC"`` or ``"unknown"``.
    """

    energy: float
    flavour: str
    current: str


@dataclass(frozen=True)
class Row:
    """One event: where it is in the file, its metrics, and its neutrino if the file tells."""

    entry: int
    event_id: tuple[int, int, int]
    metrics: Mapping[str, float]
    neutrino: Neutrino | None = None


@dataclass(frozen=True)
class Bin:
    """A group of events: how many, and the mean of a metric with its standard error."""

    name: str
    events: int
    mean: float
    error: float


@dataclass
class Tally:
    """Rows of the events, and how often each true class was taken for each other.

    Attributes:
        confusion: int64 ``[plane, true class, predicted class]``, in pixels.
    """

    rows: list[Row] = field(default_factory=list)
    confusion: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((PLANES, CLASSES, CLASSES), np.int64)
    )

    def count(self, plane: int, label: NDArray, prediction: NDArray) -> None:
        """Adds the pixels of one plane."""
        pair = label.astype(np.int64).reshape(-1) * CLASSES + prediction.reshape(-1)
        self.confusion[plane] += np.bincount(pair, minlength=CLASSES**2).reshape(CLASSES, CLASSES)

    def mean(self, key: str) -> tuple[float, int]:
        """Mean of a metric over the events where it is a number, and how many these are."""
        values = np.array([row.metrics.get(key, np.nan) for row in self.rows], np.float64)
        values = values[np.isfinite(values)]
        return (float(values.mean()), len(values)) if len(values) else (float("nan"), 0)

    def keys(self) -> list[str]:
        """Names of all metrics, in the order in which they came."""
        return list(dict.fromkeys(key for row in self.rows for key in row.metrics))

    def by_energy(self, metric: str = "Average/Neutrino_IoU") -> list[Bin]:
        """A metric by the neutrino's energy; empty bins are left out."""
        bins = []
        for low, high in itertools.pairwise(_ENERGIES):
            name = f"{low:g} to {high:g} GeV" if np.isfinite(high) else f"above {low:g} GeV"
            bins += self._bin(name, metric, lambda nu, a=low, b=high: a <= nu.energy < b)
        return bins

    def by_interaction(self, metric: str = "Average/Neutrino_IoU") -> list[Bin]:
        """A metric by flavour and current of the neutrino."""
        kinds = {(row.neutrino.flavour, row.neutrino.current) for row in self.rows if row.neutrino}
        bins = []
        for kind in sorted(kinds):
            bins += self._bin(
                " ".join(kind), metric, lambda nu, k=kind: (nu.flavour, nu.current) == k
            )
        return bins

    def _bin(self, name: str, metric: str, member: Callable[[Neutrino], bool]) -> list[Bin]:
        rows = [row for row in self.rows if row.neutrino is not None and member(row.neutrino)]
        values = np.array([row.metrics.get(metric, np.nan) for row in rows], np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            return []
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
        return [Bin(name, len(values), float(values.mean()), float(error))]


def neutrino_of(particles: NDArray | None) -> Neutrino | None:
    """The first neutrino of a particle table with an energy; None without table or neutrino.

    Args:
        particles: structured, with the fields ``pdg`` and ``energy_init`` (GeV), and
            ``current_type`` (0 charged, 1 neutral, as GENIE counts them) if known.
    """
    if particles is None or not {"pdg", "energy_init"} <= set(particles.dtype.names or ()):
        return None
    flavours = {12: "nu_e", 14: "nu_mu", 16: "nu_tau"}
    for particle in particles:
        code = int(particle["pdg"])
        if abs(code) in flavours:
            known = "current_type" in (particles.dtype.names or ())
            current = {0: "CC", 1: "NC"}.get(int(particle["current_type"]) if known else -1)
            flavour = ("anti " if code < 0 else "") + flavours[abs(code)]
            return Neutrino(float(particle["energy_init"]), flavour, current or "unknown")
    return None


def as_csv(rows: Sequence[Row], keys: Iterable[str]) -> str:
    """The rows as CSV: entry, run, subrun, event, metrics with five decimals, neutrino."""
    keys = list(keys)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    neutrino = ["neutrino_energy", "neutrino_flavour", "neutrino_current"]
    writer.writerow(["entry", "run", "subrun", "event", *keys, *neutrino])
    for row in rows:
        values = [f"{row.metrics[key]:.5f}" if key in row.metrics else "" for key in keys]
        nu = row.neutrino
        truth = [f"{nu.energy:.5f}", nu.flavour, nu.current] if nu else ["", "", ""]
        writer.writerow([row.entry, *row.event_id, *values, *truth])
    return text.getvalue()
