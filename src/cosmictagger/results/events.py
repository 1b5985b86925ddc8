"""One event of a pass in sparse form: only pixels with charge, a label or a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PlaneView:
    """One plane as dense arrays ``[H, W]``; rows are time, columns are wires.

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


@dataclass(frozen=True)
class EventRecord:
    """An event's images and scores; about 16 bytes for each pixel with charge, label or prediction.

    Attributes:
        entry: position in the file.
        event_id: run, subrun and event number.
        size: height and width of the planes as they were run.
        downsample: exponent of the downsampling between the file and ``size``.
        metrics: of this event, with the keys of the specification's section 6.
        planes: sparse arrays (pixel, image, label or None, prediction, score) of each plane.
    """

    entry: int
    event_id: tuple[int, int, int]
    size: tuple[int, int]
    downsample: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    planes: tuple[tuple[NDArray, NDArray, NDArray | None, NDArray, NDArray], ...] = ()

    @property
    def has_label(self) -> bool:
        """Whether the true classes are known."""
        return bool(self.planes) and self.planes[0][2] is not None

    def plane(self, index: int) -> PlaneView:
        """Return plane ``index`` as dense arrays, made anew by each call."""
        pixel, image, label, prediction, score = self.planes[index]

        def dense(values: NDArray) -> NDArray:
            result = np.zeros(self.size[0] * self.size[1], values.dtype)
            result[pixel] = values
            return result.reshape(self.size)

        return PlaneView(
            dense(image), None if label is None else dense(label), dense(prediction), dense(score)
        )


def sparse_plane(
    image: NDArray, label: NDArray | None, prediction: NDArray, score: NDArray
) -> tuple[NDArray, NDArray, NDArray | None, NDArray, NDArray]:
    """Keep the pixels of dense arrays ``[H, W]`` with charge, label or a predicted class."""
    seen = (image != 0) | (prediction != 0)
    if label is not None:
        seen |= label != 0
    pixel = np.flatnonzero(seen)
    return (
        pixel.astype(np.uint32),
        image.reshape(-1)[pixel].astype(np.float32),
        None if label is None else label.reshape(-1)[pixel].astype(np.uint8),
        prediction.reshape(-1)[pixel].astype(np.uint8),
        score.reshape(-1)[pixel].astype(np.float32),
    )
