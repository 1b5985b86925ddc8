"""The numbers of a pass that the report needs, a few per event."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cosmictagger.measures import metrics, physics_metrics
from cosmictagger.measures.metrics import CLASSES, PLANES
from cosmictagger.measures.physics_metrics import Bin, Neutrino


@dataclass(frozen=True)
class Row:
    """One event: where it is in the file, its metrics, and its neutrino if the file tells."""

    entry: int
    event_id: tuple[int, int, int]
    metrics: Mapping[str, float]
    neutrino: Neutrino | None = None


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

    def count(self, prediction: Tensor, label: Tensor) -> None:
        """Add the pixels of one event; both are int64 ``[plane, H, W]``."""
        self.confusion += metrics.counts(prediction[None], label[None])[0]

    def mean(self, key: str) -> tuple[float, int]:
        """Mean of a metric over the events where it is a number, and how many these are."""
        values = np.array([row.metrics.get(key, np.nan) for row in self.rows], np.float64)
        values = values[np.isfinite(values)]
        return (float(values.mean()), len(values)) if len(values) else (float("nan"), 0)

    def keys(self) -> list[str]:
        """Return names of all metrics, in the order in which they came."""
        return list(dict.fromkeys(key for row in self.rows for key in row.metrics))

    def by_energy(self, metric: str = "Average/Neutrino_IoU") -> list[Bin]:
        """Return a metric by the neutrino's energy; empty bins are left out."""
        return physics_metrics.by_energy(self._valued(metric))

    def by_interaction(self, metric: str = "Average/Neutrino_IoU") -> list[Bin]:
        """Return a metric by flavour and current of the neutrino."""
        return physics_metrics.by_interaction(self._valued(metric))

    def _valued(self, metric: str) -> list[tuple[Neutrino | None, float]]:
        return [(row.neutrino, row.metrics.get(metric, np.nan)) for row in self.rows]


def as_csv(rows: Sequence[Row], keys: Iterable[str]) -> str:
    """Return the rows as CSV: entry, run, subrun, event, metrics with five decimals, neutrino."""
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
