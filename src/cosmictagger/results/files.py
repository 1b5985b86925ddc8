"""The files that show a pass, once all of its events are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from abele.storage.atomic import write_text
from cosmictagger.results import curves, displays, report
from cosmictagger.results.events import EventRecord
from cosmictagger.results.tally import Tally, as_csv

PREDICTIONS = "predictions.h5"
_FILES = {
    PREDICTIONS: "Scores of every non-zero pixel, in the larcv3 layout of the images.",
    "event_metrics.csv": "The metrics of each event, one line per event.",
    "displays/": "The pictures of this page.",
    "curves.png": "The training curves of this page.",
    "compute/training/report.html": "What training ran as, what it needed and how long it took.",
    "compute/inference/report.html": "The same of this pass; its numbers are those at its end.",
}


@dataclass(frozen=True)
class WrittenFiles:
    """Paths of what a pass left behind; None where there was nothing to write."""

    predictions: Path
    event_metrics: Path
    displays: tuple[Path, ...]
    curves: Path | None
    report: Path


def write_files(
    folder: Path,
    tally: Tally,
    events: Sequence[EventRecord],
    proof: Any,
    settings: Mapping[str, object],
    progress: bool = True,
) -> WrittenFiles:
    """Write the table of events, the displays and the report.

    Args:
        folder: the run's; its ``predictions.h5`` and its tables of the training are there.
        tally: of all events.
        events: those to draw, in the order of the report.
        proof: what proves where the pass ran: a dataclass or a mapping.
        settings: more that the report shall name.
        progress: whether drawing shows a progress bar.
    """
    table = folder / "event_metrics.csv"
    write_text(table, as_csv(tally.rows, tally.keys()))
    pictures = _draw(folder / "displays", events, progress)
    curves_picture = curves.save(curves.read_folder(folder), folder / "curves.png")
    by_entry = {row.entry: row for row in tally.rows}
    content = report.Content(
        title="CosmicTagger: report of an inference pass",
        proof=fields(proof),
        settings=settings,
        tally=tally,
        displays=[(by_entry[entry], path) for entry, path in pictures.items()],
        curves=curves_picture,
        files={name: text for name, text in _FILES.items() if (folder / name).exists()},
    )
    page = report.save(content, folder / "report.html")
    return WrittenFiles(folder / PREDICTIONS, table, tuple(pictures.values()), curves_picture, page)


def with_image_size(
    settings: Mapping[str, object] | None, size: tuple[int, int], downsample: int
) -> dict[str, object]:
    """Return the settings of a report, and the size of the images in the file and in the pass."""
    height, width = (edge >> downsample for edge in size)
    size_text = f"{size[0]} x {size[1]}, downsample {downsample} ({height} x {width})"
    return {**(settings or {}), "image size": size_text}


def fields(proof: Any) -> dict[str, object]:
    """Return what proves where the pass ran, by names for people."""
    if dataclasses.is_dataclass(proof) and not isinstance(proof, type):
        values: Mapping[str, object] = {
            field.name: getattr(proof, field.name) for field in dataclasses.fields(proof)
        }
    elif isinstance(proof, Mapping):
        values = proof
    else:
        raise TypeError(f"proof is a {type(proof).__name__}; needed is a dataclass or a mapping")
    return {str(name).replace("_", " "): value for name, value in values.items()}


def _draw(folder: Path, events: Sequence[EventRecord], progress: bool) -> dict[int, Path]:
    for earlier in folder.glob("entry_*.png"):
        earlier.unlink()  # of a pass over other events, perhaps: they would be taken for these
    bar = tqdm(events, "Drawing events", disable=not progress or not events)
    return {
        event.entry: displays.save(event, folder / f"entry_{event.entry:06d}.png") for event in bar
    }
