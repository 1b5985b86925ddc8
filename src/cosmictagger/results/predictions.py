"""Scores of every non-zero pixel, in the file layout of the images they belong to.

The producers ``cosmic_prediction`` and ``neutrino_prediction`` hold softmax scores,
``class_prediction`` the class with the highest one (0 background, 1 cosmic, 2 neutrino); the score
of background is what the other two leave of 1. Pixels, ids (``x * H + y``) and event ids are those
of the images at the resolution that was run: whatever reads the images reads the predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cosmictagger.data.larcv import Event, EventFile, EventWriter, Plane
from cosmictagger.errors import DataError
from cosmictagger.measures import CLASSES, COSMIC, NEUTRINO, PLANES

COSMIC_PRODUCER = "cosmic_prediction"
NEUTRINO_PRODUCER = "neutrino_prediction"
CLASS_PRODUCER = "class_prediction"
PRODUCERS = (COSMIC_PRODUCER, NEUTRINO_PRODUCER, CLASS_PRODUCER)


@dataclass(frozen=True)
class Scores:
    """The scores of one plane.

    Attributes:
        cosmic: float32 ``[H, W]``, probability.
        neutrino: float32 ``[H, W]``, probability.
        prediction: uint8 ``[H, W]``, the class with the highest score.
    """

    cosmic: NDArray[np.float32]
    neutrino: NDArray[np.float32]
    prediction: NDArray[np.uint8]


def scores_of(logits: torch.Tensor) -> Scores:
    """Softmax over the classes, in float32 on the host.

    Args:
        logits: ``[3, H, W]`` of one event and plane; any floating type and device.
    """
    logits = logits.detach().float()
    if not bool(torch.isfinite(logits).all()):
        raise DataError(
            "the network's output is not finite. Check the input for NaN, and the precision of "
            "the run: float16 overflows where float32 and bfloat16 do not."
        )
    shares = logits.softmax(0)
    return Scores(
        shares[COSMIC].cpu().numpy(),
        shares[NEUTRINO].cpu().numpy(),
        logits.argmax(0).to(torch.uint8).cpu().numpy(),
    )


class PredictionWriter(EventWriter):
    """Writes predictions event by event; a context manager.

    Args:
        path: the file; it gets its name when it is complete, an older one is replaced.
        size: height and width of the images as they were run.
    """

    def __init__(self, path: str | Path, size: tuple[int, int]) -> None:
        super().__init__(path, size, PRODUCERS)

    def add(self, image: NDArray, scores: Sequence[Scores], event_id: Sequence[int]) -> None:
        """Add an event.

        Args:
            image: float32 ``[3, H, W]``; its non-zero pixels get scores.
            scores: of each plane.
            event_id: run, subrun and event number.
        """
        planes: dict[str, list[Plane]] = {name: [] for name in PRODUCERS}
        for plane, each in zip(image, scores, strict=True):
            # Transposed, the flat index is the id: time runs fastest.
            ids = np.flatnonzero(np.ascontiguousarray(plane.T)).astype(np.uint64)
            column, row = np.divmod(ids.astype(np.int64), self.size[0])
            for name, values in (
                (COSMIC_PRODUCER, each.cosmic),
                (NEUTRINO_PRODUCER, each.neutrino),
                (CLASS_PRODUCER, each.prediction),
            ):
                planes[name].append(Plane(ids, values[row, column].astype(np.float32)))
        self.write(Event(planes, tuple(int(number) for number in event_id)))


def open_predictions(path: str | Path) -> EventFile:
    """Open a file of predictions; ``sparse(NEUTRINO_PRODUCER, event)`` gives the scores."""
    return EventFile(path, image=NEUTRINO_PRODUCER, label=CLASS_PRODUCER)


def read_scores(file: EventFile, event: int) -> NDArray[np.float32]:
    """Return one event's scores, float32 ``[plane, class, H, W]``; zero where no charge is."""
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
