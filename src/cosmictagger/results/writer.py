"""Files of an inference pass: predictions, table of events, displays, report; and joined parts."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from abele.storage import atomic
from cosmictagger.data.larcv import Event, EventWriter
from cosmictagger.data.loader import dense_size
from cosmictagger.errors import DataError
from cosmictagger.measures import CLASSES, PLANES
from cosmictagger.results import plots, report
from cosmictagger.results.predictions import (
    PRODUCERS,
    PredictionWriter,
    Scores,
    open_predictions,
    scores_of,
)
from cosmictagger.results.tally import (
    Candidates,
    EventRecord,
    Neutrino,
    Row,
    Tally,
    as_csv,
    joined_candidates,
    neutrino_of,
    sparse_plane,
)

if TYPE_CHECKING:
    from cosmictagger.data.loader import Batch

PREDICTIONS = "predictions.h5"
_FILES = {
    PREDICTIONS: "Scores of every non-zero pixel, in the larcv3 layout of the images.",
    "event_metrics.csv": "The metrics of each event, one line per event.",
    "displays/": "The pictures of this page.",
    "curves.png": "The training curves of this page.",
    "compute/training/report.html": "What training ran as, what it needed and how long it took.",
    "compute/inference/report.html": "The same of this pass; its numbers are those at its end.",
}


def write_files(
    folder: Path,
    tally: Tally,
    events: Sequence[EventRecord],
    proof: Mapping[str, object],
    settings: Mapping[str, object],
    progress: bool = True,
) -> Path:
    """Write the table of events, the displays and the report; return the report's page.

    Args:
        folder: the run's; its ``predictions.h5`` and its tables of the training are there.
        tally: of all events.
        events: those to draw, in the order of the report.
        proof: evidence of the device that ran the pass, by name.
        settings: more that the report shall name.
        progress: whether drawing shows a progress bar.
    """
    atomic.write_text(folder / "event_metrics.csv", as_csv(tally.rows, tally.keys()))
    pictures = _draw(folder / "displays", events, progress)
    curves_picture = plots.save_curves(plots.read_curves(folder), folder / "curves.png")
    by_entry = {row.entry: row for row in tally.rows}
    content = report.Content(
        title="CosmicTagger: report of an inference pass",
        proof={name.replace("_", " "): value for name, value in proof.items()},
        settings=settings,
        tally=tally,
        displays=[(by_entry[entry], path) for entry, path in pictures.items()],
        curves=curves_picture,
        files={name: text for name, text in _FILES.items() if (folder / name).exists()},
    )
    return report.save(content, folder / "report.html")


def image_size_text(size: tuple[int, int], downsample: int) -> str:
    """Format the size of the images in the file and in the pass."""
    height, width = (edge >> downsample for edge in size)
    return f"{size[0]} x {size[1]}, downsample {downsample} ({height} x {width})"


def _draw(folder: Path, events: Sequence[EventRecord], progress: bool) -> dict[int, Path]:
    for earlier in folder.glob("entry_*.png"):
        earlier.unlink()  # of a pass over other events, perhaps: they would be taken for these
    bar = tqdm(events, "Drawing events", disable=not progress or not events)
    return {
        event.entry: plots.save_display(event, folder / f"entry_{event.entry:06d}.png")
        for event in bar
    }


class Collector:
    """Takes a pass and keeps what its files are made from; a context manager.

    Leaving the block normally calls `close`; leaving it by an exception calls `discard`.

    Args:
        folder: where the predictions go; made if absent.
        size: height and width of the images in the file, in pixels, before downsampling.
        downsample: exponent k of the run; scores have the size ``(H / 2**k, W / 2**k)``.
        displays: how many events to draw.

    Attributes:
        tally: metrics and confusion of the events so far.
        candidates: the events that may be drawn.
    """

    def __init__(
        self, folder: str | Path, size: tuple[int, int], downsample: int, displays: int
    ) -> None:
        self.folder = Path(folder)
        self.tally = Tally()
        self.candidates = Candidates(displays)
        self._downsample = downsample
        self._size = dense_size(size, downsample)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._predictions = PredictionWriter(self.folder / PREDICTIONS, self._size)

    def add(
        self,
        batch: Batch,
        logits: Sequence[torch.Tensor],
        per_event_metrics: Sequence[Mapping[str, float]] | None = None,
        particles: Sequence[NDArray | None] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            batch: its ``label`` may be None. Events beyond ``len(batch.entries)`` are padding of a
                fixed batch size and are left out.
            logits: three tensors ``[B, 3, H, W]``, one per plane, of any floating type and device.
            per_event_metrics: one mapping per event with the keys of the specification
                (``Average/mIoU``, ``plane0/Cosmic_IoU``...); None for a file without labels.
            particles: one particle table (or None) per event, as `EventFile.particles` returns it,
                for IoU by energy and interaction.
        """
        self._check(batch, logits, per_event_metrics)
        for index, entry in enumerate(batch.entries):
            try:
                scores = [scores_of(plane[index]) for plane in logits]
            except DataError as problem:
                raise DataError(f"Entry {entry} of the events: {problem}") from None
            image = batch.image[index].detach().float().cpu().numpy()
            label = None if batch.label is None else batch.label[index].cpu().numpy()
            ids = _three(batch.event_ids[index])
            self._predictions.add(image, scores, ids)
            table = None if particles is None else particles[index]
            metrics = {} if per_event_metrics is None else dict(per_event_metrics[index])
            self.tally.rows.append(Row(int(entry), ids, metrics, neutrino_of(table)))
            self._record(int(entry), ids, metrics, image, label, scores)

    def close(self) -> Any:
        """Complete the predictions."""
        self._predictions.close()

    def discard(self) -> None:
        """Forget the pass: no file with a final name appears."""
        self._predictions.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _check(self, batch: Batch, logits: Sequence[torch.Tensor], metrics: Any) -> None:
        events = len(batch.entries)
        shapes = [tuple(plane.shape) for plane in logits]
        fits = len(shapes) == PLANES and all(
            len(shape) == 4 and shape[0] >= events and shape[1:] == (CLASSES, *self._size)
            for shape in shapes
        )
        if not fits:
            raise DataError(
                f"Logits have shapes {shapes}; needed are three of [{events} or more, 3, "
                f"{self._size[0]}, {self._size[1]}], the size of the images at downsample "
                f"{self._downsample}."
            )
        if (metrics is None) != (batch.label is None) or (metrics and len(metrics) < events):
            rows = "none" if metrics is None else str(len(metrics))
            raise DataError(
                f"Metrics come with labels, one row per event: {events} events "
                f"{'without' if batch.label is None else 'with'} labels, rows of metrics: {rows}."
            )

    def _record(
        self,
        entry: int,
        event_id: tuple[int, int, int],
        metrics: Mapping[str, float],
        image: NDArray,
        label: NDArray | None,
        scores: Sequence[Scores],
    ) -> None:
        """Count an event, and keep its pixels if it may be drawn."""
        if label is not None:
            predicted = np.stack([each.prediction for each in scores]).astype(np.int64)
            self.tally.count(torch.from_numpy(predicted), torch.from_numpy(label))
        if not self.candidates.wants(label is not None):
            return
        planes = tuple(
            sparse_plane(
                image[p], None if label is None else label[p], each.prediction, each.neutrino
            )
            for p, each in enumerate(scores)
        )
        self.candidates.add(
            EventRecord(entry, event_id, self._size, self._downsample, metrics, planes)
        )


_ARRAYS = ("pixel", "image", "label", "prediction", "score")


class Part(NamedTuple):
    """The results of one instance.

    Attributes:
        folder: with its predictions.
        tally: of its events.
        candidates: those of its events that may be drawn.
    """

    folder: Path
    tally: Tally
    candidates: Candidates


def save_part(part: Part) -> None:
    """Write a part beside its predictions; each file at once or not at all."""
    arrays: dict[str, Any] = {}
    events = []
    for event in part.candidates.events():
        values = dataclasses.asdict(dataclasses.replace(event, planes=()))
        events.append({name: value for name, value in values.items() if name != "planes"})
        for number, plane in enumerate(event.planes):
            for name, array in zip(_ARRAYS, plane, strict=True):
                if array is not None:
                    arrays[f"{event.entry}.{number}.{name}"] = array
    with atomic.replacing(part.folder / "displays.npz") as file:
        np.savez(file, **arrays)
    content = {
        "rows": [dataclasses.asdict(row) for row in part.tally.rows],
        "confusion": part.tally.confusion.tolist(),
        "most": part.candidates.most,
        "seen": part.candidates.seen,
        "events": events,
    }
    atomic.write_text(part.folder / "results.json", json.dumps(content))


def load_part(folder: Path) -> Part:
    """Read what ``save`` wrote."""
    try:
        return _loaded_part(folder)
    except (OSError, LookupError, TypeError, ValueError, zipfile.BadZipFile) as problem:
        raise DataError(
            f"The part of a pass in {folder} cannot be read: {problem}. Delete {folder} and start "
            "the pass again."
        ) from problem


def _loaded_part(folder: Path) -> Part:
    content = json.loads((folder / "results.json").read_text("utf-8"))
    tally = Tally([_row(values) for values in content["rows"]])
    tally.confusion += np.array(content["confusion"], np.int64)
    candidates = Candidates(content["most"])
    with np.load(folder / "displays.npz", allow_pickle=False) as arrays:
        for values in content["events"]:
            candidates.add(_event(values, arrays))
    candidates.seen = content["seen"]
    return Part(folder, tally, candidates)


def join_parts(parts: Sequence[Part]) -> tuple[Tally, Candidates]:
    """Return the tally and the candidates of the whole pass."""
    rows = sorted((row for part in parts for row in part.tally.rows), key=lambda row: row.entry)
    for before, after in itertools.pairwise(rows):
        if before.entry == after.entry:
            raise DataError(
                f"Event {after.entry} is in two parts of {parts[0].folder.parent}. Delete that "
                "folder and start the pass anew."
            )
    tally = Tally(rows)
    for part in parts:
        tally.confusion += part.tally.confusion
    return tally, joined_candidates([part.candidates for part in parts])


def join_predictions(parts: Sequence[Part], path: Path) -> None:
    """Write one file of predictions; an older one stays until the new one is complete."""
    places = sorted(
        (row.entry, number, event)
        for number, part in enumerate(parts)
        for event, row in enumerate(part.tally.rows)
    )
    numbers = {number for _, number, _ in places}
    files = {number: open_predictions(parts[number].folder / PREDICTIONS) for number in numbers}
    try:
        with EventWriter(path, next(iter(files.values())).image_size, PRODUCERS) as writer:
            for _, number, event in places:
                file = files[number]
                planes = {name: file.sparse(name, event) for name in PRODUCERS}
                writer.write(Event(planes, tuple(int(n) for n in file.event_ids[event])))
    finally:
        for file in files.values():
            file.close()


def _row(values: dict[str, Any]) -> Row:
    neutrino = values["neutrino"]
    return Row(
        values["entry"],
        _three(values["event_id"]),
        values["metrics"],
        None if neutrino is None else Neutrino(**neutrino),
    )


def _event(values: dict[str, Any], arrays: Any) -> EventRecord:
    def plane(number: int) -> Any:
        names = [f"{values['entry']}.{number}.{name}" for name in _ARRAYS]
        return tuple(arrays.get(name) for name in names)

    return EventRecord(
        **{
            **values,
            "event_id": _three(values["event_id"]),
            "size": tuple(values["size"]),
            "planes": tuple(plane(number) for number in range(PLANES)),
        }
    )


def _three(numbers: Any) -> tuple[int, int, int]:
    run, subrun, event = map(int, numbers)
    return run, subrun, event
