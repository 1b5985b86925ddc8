"""Files that people look at: table of events, displays, curves, and the pages of both modes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from abele.storage import atomic
from cosmictagger import measures
from cosmictagger.backends import Proof
from cosmictagger.data.larcv import EventWriter
from cosmictagger.data.loader import Batch, BatchStream
from cosmictagger.launch import Launch
from cosmictagger.measures import CLASSES, PLANES
from cosmictagger.recording import progress, warn_once
from cosmictagger.results import plots, report
from cosmictagger.results.predictions import (
    PREDICTIONS,
    join_predictions,
    predictions_writer,
    scored_event,
    scores_of,
)
from cosmictagger.results.tally import Candidates, EventRecord, Row, Tally, as_csv, sparse_plane

__all__ = ["Collector", "join_predictions", "predictions_writer", "write_files", "write_training"]

REPORT, TRAINING = "report.html", "training.html"
_FILES = {
    TRAINING: "The page of the training, of its last checkpoint.",
    REPORT: "The page of the last inference pass.",
    PREDICTIONS: "Scores of every pixel with charge, in the larcv3 layout of the images.",
    "event_metrics.csv": "The metrics of each event, one line per event.",
    "displays/": "The pictures of events.",
    "curves.png": "The training curves of this page.",
    "checkpoints/": "Weights, optimizer and position in the events.",
    "train_metrics.csv": "Metrics of the training batches, one line per logged step.",
    "test_metrics.csv": "Metrics of the validation batches.",
    "compute/training/report.html": "What training ran as, what it needed and how long it took.",
    "compute/inference/report.html": "The same of inference; its numbers are those at its end.",
}


def write_files(
    folder: Path,
    tally: Tally,
    events: Sequence[EventRecord],
    proof: Mapping[str, object],
    settings: Mapping[str, object],
) -> Path:
    """Write the table of events, the displays and the report; return the report's page.

    Args:
        folder: the run's; its ``predictions.h5`` and its tables of the training are there.
        tally: of all events.
        events: those to draw, in the order of the report.
        proof: evidence of the device that ran the pass, by name.
        settings: more that the report shall name.
    """
    atomic.write_text(folder / "event_metrics.csv", as_csv(tally.rows, tally.keys()))
    pictures = _draw(folder / "displays", events)
    by_entry = {row.entry: row for row in tally.rows}
    displays = [(by_entry[entry], path) for entry, path in pictures.items()]
    title = "CosmicTagger: report of an inference pass"
    return _save(report.Content(title, proof, settings, tally, displays), folder / REPORT)


def write_training(
    launch: Launch, proof: Proof, step: int, events: BatchStream, aux: BatchStream | None
) -> None:
    """Write curves and page of a training as they are after a step.

    What stops that, such as a table that somebody has changed, is a warning: training goes on.
    """
    config, optimizer = launch.config, launch.config.mode.optimizer
    settings = {
        "run": config.run.id,
        "network": config.network.name,
        "after step": step,
        "events": f"{events.events} to train on, {aux.events if aux else 'none'} to validate on",
        "images of a step": events.step_size,
        "loss": optimizer.loss_balance_scheme.name,
        "optimizer": f"{optimizer.name.name}, learning rate {optimizer.learning_rate:g}",
    }
    title = f"CosmicTagger: training of {config.run.id}"
    content = report.Content(title, dataclasses.asdict(proof), settings)
    try:
        _save(content, launch.folder / TRAINING)
    except (OSError, LookupError, ValueError) as problem:
        warn_once(f"{launch.folder / TRAINING} could not be written: {problem!r}.")


def _save(content: report.Content, path: Path) -> Path:
    """Write a page, with the curves of its folder and the names of the files there."""
    folder, curves = path.parent, plots.read_curves(path.parent)
    picture = plots.save_curves(curves, folder / "curves.png")
    files = {name: text for name, text in _FILES.items() if (folder / name).exists()}
    files.pop(path.name, None)
    content = dataclasses.replace(content, curves=curves, picture=picture, files=files)
    atomic.write_text(path, report.page(content))
    return path


def _draw(folder: Path, events: Sequence[EventRecord]) -> dict[int, Path]:
    for earlier in folder.glob("entry_*.png"):
        earlier.unlink()  # of a pass over other events, perhaps: they would be taken for these
    return {
        event.entry: plots.save_display(event, folder / f"entry_{event.entry:06d}.png")
        for event in progress(events, "Drawing events")
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
        confusion: int64 ``[plane, true class, predicted class]``, in pixels with charge.
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
            known = row.event_id, self._predictions.frame, row.whole
            self._predictions.write(scored_event(image, scores, *known))
            if label is not None:
                predicted = torch.from_numpy(np.stack([each.prediction for each in scores]))
                charge = torch.from_numpy(image != 0)
                counts = measures.counts(predicted[None], label[None], charge[None])
                self.confusion += torch.from_numpy(counts[0])
            if self.candidates.wants(label is not None):
                truth = [None] * PLANES if label is None else label.numpy()
                planes = tuple(
                    sparse_plane(plane, classes, each.prediction, each.neutrino)
                    for plane, classes, each in zip(image, truth, scores, strict=True)
                )
                size, known = image.shape[1:], (row.entry, row.event_id)
                more = row.metrics, planes, row.whole
                record = EventRecord(*known, size, self._downsample, *more)
                self.candidates.add(record)
