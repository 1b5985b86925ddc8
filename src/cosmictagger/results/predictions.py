"""Prediction files: scores of every non-zero pixel, in the layout of larcv3 images.

The producers ``cosmic_prediction`` and ``neutrino_prediction`` hold softmax scores,
``class_prediction`` the class with the highest one (0 background, 1 cosmic, 2 neutrino); the score
of background is what the other two leave of 1. Pixels, ids (``x * H + y``) and event ids are those
of the images at the resolution that was run: whatever reads the images reads the predictions.
With heads there are also ``Events/event_scores``, the probabilities of the classes of events, and
boxes of the producer ``vertex_prediction``, whose centres are the vertices in units of the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cosmictagger.data.larcv import (
    EVENT_SCORES,
    Event,
    EventFile,
    EventWriter,
    Frame,
    Plane,
    box_group,
    event_writer,
)
from cosmictagger.measures import CLASSES, COSMIC, NEUTRINO, PLANES
from cosmictagger.recording import progress
from cosmictagger.results.tally import Whole

PREDICTIONS = "predictions.h5"
COSMIC_PRODUCER = "cosmic_prediction"
NEUTRINO_PRODUCER = "neutrino_prediction"
CLASS_PRODUCER = "class_prediction"
VERTEX_PRODUCER = "vertex_prediction"
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
def predictions_writer(
    folder: Path,
    size: tuple[int, int],
    frame: Frame | None = None,
    heads: tuple[bool, bool] = (False, False),
) -> Iterator[EventWriter]:
    """Open a folder's prediction file for writing; renamed when complete.

    Args:
        folder: made if absent; an older file in it is replaced.
        size: height and width of the images as they were run.
        frame: where the images lie; needed for vertices.
        heads: whether there are scores of events, and vertices.
    """
    folder.mkdir(parents=True, exist_ok=True)
    boxes = [VERTEX_PRODUCER] if heads[1] else []
    path, more = folder / PREDICTIONS, {"boxes": boxes, "scores": heads[0], "frame": frame}
    with event_writer(path, size, PRODUCERS, **more) as writer:
        yield writer


def scored_event(
    image: NDArray,
    scores: Sequence[Scores],
    event_id: Sequence[int],
    frame: Frame | None = None,
    whole: Whole = Whole(),  # noqa: B008  immutable
) -> Event:
    """Return an event with the scores of the non-zero pixels of its image.

    Args:
        image: float32 ``[3, H, W]``.
        scores: of each plane.
        event_id: run, subrun and event number.
        frame: where the images lie; needed for vertices.
        whole: what heads say of it.
    """
    planes: dict[str, list[Plane]] = {name: [] for name in PRODUCERS}
    for plane, each in zip(image, scores, strict=True):
        # Transposed, the flat index is the id: time runs fastest.
        ids = np.flatnonzero(np.ascontiguousarray(plane.T)).astype(np.uint64)
        column, row = np.divmod(ids.astype(np.int64), plane.shape[0])
        for name, values in zip(PRODUCERS, each, strict=True):
            planes[name].append(Plane(ids, values[row, column].astype(np.float32)))
    boxes = {}
    if whole.vertex is not None and frame is not None:
        boxes = {VERTEX_PRODUCER: list(frame.place(np.array(whole.vertex))[:, None])}
    return Event(planes, event_id, None, boxes, whole.scores)


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
        file = next(iter(files.values()))
        heads = file.has(EVENT_SCORES), file.has(box_group(VERTEX_PRODUCER))
        layout = file.image_size, file.frame(VERTEX_PRODUCER), heads
        writer = stack.enter_context(predictions_writer(folder, *layout))
        for _, part, event in progress(places, "Joining predictions"):
            file = files[part]
            planes = {name: file.sparse(name, event) for name in PRODUCERS}
            boxes = {VERTEX_PRODUCER: file.boxes(VERTEX_PRODUCER, event)} if heads[1] else {}
            scores = file.event_scores(event)
            writer.write(Event(planes, file.event_ids[event], None, boxes, scores))


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


read_event_scores = EventFile.event_scores


def read_vertices(file: EventFile, event: int) -> NDArray[np.float64] | None:
    """Read where the vertex was found, [plane, (time, wire)]; None where there is no such head.

    In the units of the file that was read, centimetres as a rule.
    """
    if not file.has(box_group(VERTEX_PRODUCER)):
        return None
    return np.concatenate(file.boxes(VERTEX_PRODUCER, event))
