"""Event statistics of an inference pass: metrics, neutrinos, and events to draw."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cosmictagger.measures import EVENT_CLASSES

UNKNOWN = "unknown"
_FLAVOURS = {12: "nu_e", 14: "nu_mu", 16: "nu_tau"}  # by the Particle Data Group's numbers
_CURRENTS = {0: "CC", 1: "NC"}


@dataclasses.dataclass(frozen=True)
class Neutrino:
    """The true neutrino of a simulated event.

    Attributes:
        energy: GeV.
        flavour: like ``nu_mu`` or ``anti nu_e``.
        current: ``CC`` (charged), ``NC`` (neutral), or ``unknown``.
    """

    energy: float
    flavour: str
    current: str = UNKNOWN


def neutrino_of(particles: NDArray[np.void] | None) -> Neutrino | None:
    """Return the first neutrino of an event's true particles, or None.

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


Places = tuple[tuple[float, float] | None, ...]
"""Row and column of the vertex in each plane, as shares of the image; None where it is not."""


@dataclass(frozen=True)
class Whole:
    """Predictions of heads for a whole event, and the truth; None where that is not known.

    Attributes:
        scores: probabilities of ``EVENT_CLASSES``.
        vertex: where the vertex is found to be.
        true_class: position in ``EVENT_CLASSES``.
        true_vertex: where it is.
    """

    scores: tuple[float, ...] | None = None
    vertex: Places | None = None
    true_class: int | None = None
    true_vertex: Places | None = None

    @property
    def taken_for(self) -> int | None:
        """Return the class with the highest score."""
        return None if self.scores is None else int(np.argmax(self.scores))

    def names(self) -> tuple[str, str]:
        """Return the true class and what it was taken for, empty where not known."""
        true = "" if self.true_class is None else EVENT_CLASSES[self.true_class]
        return (true, EVENT_CLASSES[self.taken_for]) if self.taken_for is not None else ("", "")


@dataclass(frozen=True)
class PlaneView:
    """Images of one plane as dense arrays ``[H, W]``; rows are time, columns are wires.

    Attributes:
        image: float32, charge.
        label: uint8 true class, or None without labels.
        prediction: uint8 class with the highest score.
        score: float32 probability of neutrino; zero where nothing is to be seen.
    """

    image: NDArray[np.float32]
    label: NDArray[np.uint8] | None
    prediction: NDArray[np.uint8]
    score: NDArray[np.float32]


SparsePlane = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]


@dataclass(frozen=True)
class EventRecord:
    """An event's sparse images and scores, about 16 bytes per non-empty pixel.

    Attributes:
        entry: position in the file.
        event_id: run, subrun and event number.
        size: height and width of the planes as they were run.
        downsample: exponent of the downsampling between the file and ``size``.
        metrics: of this event, with the keys of the specification's section 6.
        planes: sparse tensors (pixel, image, label or None, prediction, score) of each plane.
        whole: what heads say.
    """

    entry: int
    event_id: tuple[int, int, int]
    size: tuple[int, int]
    downsample: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    planes: tuple[SparsePlane, ...] = ()
    whole: Whole = Whole()

    @property
    def has_label(self) -> bool:
        """True if the event's true classes are known."""
        return bool(self.planes) and self.planes[0][2] is not None

    def plane(self, index: int) -> PlaneView:
        """Return the images of a plane as new dense arrays."""
        pixel, image, label, prediction, score = self.planes[index]

        def dense(values: Tensor) -> NDArray:
            result = np.zeros(self.size[0] * self.size[1], values.numpy().dtype)
            result[pixel.numpy()] = values
            return result.reshape(self.size)

        return PlaneView(
            dense(image), None if label is None else dense(label), dense(prediction), dense(score)
        )


def sparse_plane(
    image: NDArray, label: NDArray | None, prediction: NDArray, score: NDArray
) -> SparsePlane:
    """Extract the pixels of dense arrays ``[H, W]`` with charge, label or a predicted class."""
    seen = (image != 0) | (prediction != 0)
    if label is not None:
        seen |= label != 0
    pixel = np.flatnonzero(seen)

    def chosen(values: NDArray, kind: type) -> Tensor:
        return torch.from_numpy(values.reshape(-1)[pixel].astype(kind))

    return (
        torch.from_numpy(pixel),
        chosen(image, np.float32),
        None if label is None else chosen(label, np.uint8),
        chosen(prediction, np.uint8),
        chosen(score, np.float32),
    )


class Mean(NamedTuple):
    """A mean, its standard error (NaN for one value), and how many values it is of."""

    value: float
    error: float
    count: int


def mean_of(values: ArrayLike) -> Mean:
    """Return the mean of those values that are numbers; NaN if none is."""
    found = np.array(values, np.float64)
    found = found[np.isfinite(found)]
    count = len(found)
    error = found.std(ddof=1) / count**0.5 if count > 1 else np.nan
    return Mean(float(found.mean()) if count else np.nan, float(error), count)


@dataclass(frozen=True)
class Row:
    """Metrics of one event, its position in the file, true neutrino, and what heads say of it."""

    entry: int
    event_id: tuple[int, int, int]
    metrics: Mapping[str, float]
    neutrino: Neutrino | None = None
    whole: Whole = Whole()


@dataclass(frozen=True)
class Tally:
    """Metrics per event and confusion counts of an inference pass.

    Attributes:
        confusion: int64 ``[plane, true class, predicted class]``, in pixels with charge.
    """

    rows: Sequence[Row]
    confusion: Tensor

    def mean(self, key: str) -> Mean:
        """Return the mean of a metric over the events that have it."""
        return mean_of([row.metrics.get(key, np.nan) for row in self.rows])

    def keys(self) -> list[str]:
        """Return the names of all metrics, in order of first appearance."""
        return list(dict.fromkeys(key for row in self.rows for key in row.metrics))


def as_csv(rows: Sequence[Row], keys: Iterable[str]) -> str:
    """Format event rows as CSV: entry, run, subrun, event, metrics with five decimals, neutrino.

    With a head for it also the class of each event and what it was taken for.
    """
    keys = list(keys)
    has_class = any(row.whole.scores for row in rows)
    classes = ["event_class", "taken_for"] if has_class else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    neutrino = ["neutrino_energy", "neutrino_flavour", "neutrino_current"]
    writer.writerow(["entry", "run", "subrun", "event", *keys, *neutrino, *classes])
    for row in rows:
        values = [f"{row.metrics[key]:.5f}" if key in row.metrics else "" for key in keys]
        nu = row.neutrino
        truth = [f"{nu.energy:.5f}", nu.flavour, nu.current] if nu else ["", "", ""]
        writer.writerow(
            [row.entry, *row.event_id, *values, *truth, *(row.whole.names() if has_class else ())]
        )
    return text.getvalue()


class Candidates:
    """Events kept for drawing: the worst and the best of a pass, bounded in number.

    Attributes:
        most: maximum number of events.
        seen: how many events with labels were offered.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen = 0
        self._events: list[EventRecord] = []

    def __len__(self) -> int:
        return len(self._events)

    def wants(self, labelled: bool) -> bool:
        """Return whether the next event should be added for drawing."""
        return labelled or len(self) < self.most

    def add(self, event: EventRecord) -> None:
        """Add an event for drawing; drop the median event if there are too many."""
        self.seen += event.has_label
        self._events.append(event)
        if len(self._events) > self.most:
            # Neither among the worst half nor among the best: it cannot become either any more.
            self._events.sort(key=rank)
            del self._events[self.most // 2]

    def events(self) -> list[EventRecord]:
        """Return the events to draw, worst to best; in file order if all are drawn."""
        chosen = sorted(self._events, key=lambda event: event.entry)
        return sorted(chosen, key=rank) if self.seen > self.most else chosen


def joined_candidates(parts: Sequence[Candidates]) -> Candidates:
    """Merge the events to draw of all parts of a pass.

    An event that is among the worst or the best of all is so in its part, too.

    Args:
        parts: at least one, all with the same ``most``.
    """
    result = Candidates(parts[0].most)
    events = [event for part in parts for event in part.events()]
    for event in sorted(events, key=lambda event: event.entry):
        if result.wants(event.has_label):
            result.add(event)
    result.seen = sum(part.seen for part in parts)
    return result


def rank(event: EventRecord | Row) -> float:
    """Return the mean IoU, by which events are ordered; those without one come last."""
    return event.metrics.get("Average/mIoU", np.inf)
