"""Writes the files of an inference pass: table of events, displays and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from abele.storage import atomic
from cosmictagger import measures
from cosmictagger.data.larcv import EventWriter
from cosmictagger.data.loader import Batch
from cosmictagger.measures import CLASSES, PLANES
from cosmictagger.results import plots, report
from cosmictagger.results.predictions import (
    PREDICTIONS,
    join_predictions,
    predictions_writer,
    scored_event,
    scores_of,
)
from cosmictagger.results.tally import Candidates, EventRecord, Row, Tally, as_csv, sparse_plane

__all__ = ["Collector", "join_predictions", "predictions_writer", "write_files"]

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


def _draw(folder: Path, events: Sequence[EventRecord], progress: bool) -> dict[int, Path]:
    for earlier in folder.glob("entry_*.png"):
        earlier.unlink()  # of a pass over other events, perhaps: they would be taken for these
    bar = tqdm(events, "Drawing events", disable=not progress or not events)
    return {
        event.entry: plots.save_display(event, folder / f"entry_{event.entry:06d}.png")
        for event in bar
    }


class Collector:
    """Accumulates the results of an inference pass batch by batch, for the output files.

    Memory does not grow with the pass: scores go to the file of predictions, and only a few events
    are kept for the displays.

    Args:
        predictions: the file that takes the scores.
        downsample: exponent k of the run.
        displays: how many events to draw.

    Attributes:
        confusion: int64 ``[plane, true class, predicted class]``, in pixels.
        candidates: the events that may be drawn.
    """

    def __init__(self, predictions: EventWriter, downsample: int, displays: int) -> None:
        self.confusion = torch.zeros(PLANES, CLASSES, CLASSES, dtype=torch.int64)
        self.candidates = Candidates(displays)
        self._predictions = predictions
        self._downsample = downsample

    def add(self, batch: Batch, logits: Sequence[torch.Tensor], rows: Sequence[Row]) -> None:
        """Add an inference batch to the results.

        Args:
            batch: its ``label`` may be None.
            logits: three tensors ``[B, 3, H, W]``, one per plane, of any floating type and device.
            rows: its events.
        """
        for index, row in enumerate(rows):
            scores = [scores_of(plane[index]) for plane in logits]
            image = batch.image[index].detach().float().cpu().numpy()
            label = None if batch.label is None else batch.label[index].cpu()
            self._predictions.write(scored_event(image, scores, row.event_id))
            if label is not None:
                predicted = torch.from_numpy(np.stack([each.prediction for each in scores]))
                counts = measures.counts(predicted[None], label[None])
                self.confusion += torch.from_numpy(counts[0])
            if self.candidates.wants(label is not None):
                truth = [None] * PLANES if label is None else label.numpy()
                planes = tuple(
                    sparse_plane(plane, classes, each.prediction, each.neutrino)
                    for plane, classes, each in zip(image, truth, scores, strict=True)
                )
                self.candidates.add(
                    EventRecord(
                        row.entry,
                        row.event_id,
                        image.shape[1:],
                        self._downsample,
                        row.metrics,
                        planes,
                    )
                )
