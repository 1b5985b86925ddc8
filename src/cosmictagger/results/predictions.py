"""Prediction files: scores of every non-zero pixel, in the layout of larcv3 images.

The producers ``cosmic_prediction`` and ``neutrino_prediction`` hold softmax scores,
``class_prediction`` the class with the highest one (0 background, 1 cosmic, 2 neutrino); the score
of background is what the other two leave of 1. Pixels, ids (``x * H + y``) and event ids are those
of the images at the resolution that was run: whatever reads the images reads the predictions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cosmictagger.data.larcv import Event, EventFile, EventWriter, Plane, event_writer
from cosmictagger.measures import CLASSES, COSMIC, NEUTRINO, PLANES
from cosmictagger.recording import progress

PREDICTIONS = "predictions.h5"
COSMIC_PRODUCER = "cosmic_prediction"
NEUTRINO_PRODUCER = "neutrino_prediction"
CLASS_PRODUCER = "class_prediction"
PRODUCERS = (COSMIC_PRODUCER, NEUTRINO_PRODUCER, CLASS_PRODUCER)


class Scores(NamedTuple):
    """The predicted class probabilities of one plane.

    Attributes:
        cosmic: float32 ``[H, W]``, probability.
        neutrino: float32 ``[H, W]``, probability.
        prediction: uint8 ``[H, W]``, the class with the highest score.
    """

    cosmic: NDArray[np.float32]
    neutrino: NDArray[np.float32]
    prediction: NDArray[np.uint8]


def scores_of(logits: torch.Tensor) -> Scores:
    """Return the softmax of logits over the classes, in float32 on the host.

    Args:
        logits: ``[3, H, W]`` of one event and plane; any floating type and device.
    """
    logits = logits.detach().float()
    shares = logits.softmax(0)
    return Scores(
        shares[COSMIC].cpu().numpy(),
        shares[NEUTRINO].cpu().numpy(),
        logits.argmax(0).to(torch.uint8).cpu().numpy(),
    )


@contextlib.contextmanager
def predictions_writer(folder: Path, size: tuple[int, int]) -> Iterator[EventWriter]:
    """Open a folder's prediction file for writing; renamed when complete.

    Args:
        folder: made if absent; an older file in it is replaced.
        size: height and width of the images as they were run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with event_writer(folder / PREDICTIONS, size, PRODUCERS) as writer:
        yield writer


def scored_event(image: NDArray, scores: Sequence[Scores], event_id: Sequence[int]) -> Event:
    """Return an event with the scores of the non-zero pixels of its image.

    Args:
        image: float32 ``[3, H, W]``.
        scores: of each plane.
        event_id: run, subrun and event number.
    """
    planes: dict[str, list[Plane]] = {name: [] for name in PRODUCERS}
    for plane, each in zip(image, scores, strict=True):
        # Transposed, the flat index is the id: time runs fastest.
        ids = np.flatnonzero(np.ascontiguousarray(plane.T)).astype(np.uint64)
        column, row = np.divmod(ids.astype(np.int64), plane.shape[0])
        for name, values in zip(PRODUCERS, each, strict=True):
            planes[name].append(Plane(ids, values[row, column].astype(np.float32)))
    return Event(planes, event_id)


def join_predictions(parts: Mapping[Path, Sequence[int]], folder: Path) -> None:
    """Merge prediction files of instances into one, replaced atomically.

    Args:
        parts: by folder of an instance, the entries of its events.
        folder: of the new file.
    """
    places = sorted(
        (entry, part, event)
        for part, entries in parts.items()
        for event, entry in enumerate(entries)
    )
    with contextlib.ExitStack() as stack:
        files = {
            part: stack.enter_context(open_predictions(part / PREDICTIONS))
            for part, entries in parts.items()
            if entries
        }
        size = next(iter(files.values())).image_size
        writer = stack.enter_context(predictions_writer(folder, size))
        for _, part, event in progress(places, "Joining predictions"):
            planes = {name: files[part].sparse(name, event) for name in PRODUCERS}
            writer.write(Event(planes, files[part].event_ids[event]))


def open_predictions(path: str | Path) -> EventFile:
    """Open a prediction file; ``sparse(NEUTRINO_PRODUCER, event)`` returns the scores."""
    return EventFile(path, image=NEUTRINO_PRODUCER, label=CLASS_PRODUCER)


def read_scores(file: EventFile, event: int) -> NDArray[np.float32]:
    """Read one event's scores, float32 ``[plane, class, H, W]``; zero at pixels without charge."""
    height, width = file.image_size
    scores = np.zeros((PLANES, CLASSES, width, height), np.float32)
    for producer, number in ((COSMIC_PRODUCER, COSMIC), (NEUTRINO_PRODUCER, NEUTRINO)):
        for plane, (ids, values) in enumerate(file.sparse(producer, event)):
            scores[plane, number].reshape(-1)[ids.astype(np.int64)] = values
    for plane, (ids, _) in enumerate(file.sparse(COSMIC_PRODUCER, event)):
        pixel = ids.astype(np.int64)
        flat = scores[plane].reshape(CLASSES, -1)
        flat[0, pixel] = 1 - flat[COSMIC, pixel] - flat[NEUTRINO, pixel]
    return np.ascontiguousarray(scores.swapaxes(2, 3))
