"""Writing the results of an inference pass, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from cosmictagger.data.dense import dense_size
from cosmictagger.errors import DataError
from cosmictagger.measures.metrics import CLASSES, PLANES
from cosmictagger.measures.physics_metrics import neutrino_of
from cosmictagger.results.candidates import Candidates
from cosmictagger.results.events import EventRecord, sparse_plane
from cosmictagger.results.files import (
    PREDICTIONS,
    WrittenFiles,
    fields,
    with_image_size,
    write_files,
)
from cosmictagger.results.predictions import PredictionWriter, Scores, scores_of
from cosmictagger.results.tally import Row, Tally

if TYPE_CHECKING:
    from cosmictagger.data.loader import Batch


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
            ids = _event_id(batch.event_ids[index])
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


class ResultsWriter(Collector):
    """Collects the results of one inference pass; a context manager.

    Leaving the block normally calls `close`; leaving it by an exception calls `discard`.

    Args:
        output_dir: the run's folder; made if absent. Training curves are read from its
            ``train_metrics.csv`` and ``test_metrics.csv``.
        size: height and width of the images in the file, in pixels, before downsampling.
        downsample: exponent k of the run; scores have the size ``(H / 2**k, W / 2**k)``.
        proof: what proves where the pass ran: a `cosmictagger.backends.Proof`, any other dataclass
            or a mapping of names to values, or a function that gives one. A function is called at
            the end, when the executable is known and the steps are counted.
        displays: how many events to draw, half of them the worst by mIoU and half the best. Without
            labels the first ones.
        settings: more that the report shall name: the events, the weights, the network.
        progress: whether drawing shows a progress bar.

    Attributes:
        files: what was written, once `close` is through.
        tally, candidates: see `Collector`.
    """

    files: WrittenFiles

    def __init__(
        self,
        output_dir: str | Path,
        size: tuple[int, int],
        downsample: int,
        proof: Any,
        displays: int = 8,
        settings: Mapping[str, object] | None = None,
        progress: bool = True,
    ) -> None:
        self._proof = proof if callable(proof) else fields(proof)
        self._settings = with_image_size(settings, size, downsample)
        self._progress = progress
        super().__init__(output_dir, size, downsample, displays)

    def close(self) -> WrittenFiles:
        """Complete the predictions, then draw the displays and write the page."""
        super().close()
        self.files = write_files(
            self.folder,
            self.tally,
            self.candidates.events(),
            self._proof() if callable(self._proof) else self._proof,
            self._settings,
            self._progress,
        )
        return self.files


def write(output_dir: str | Path, passes: Iterable[Sequence[Any]], **settings: Any) -> WrittenFiles:
    """Write the results of a whole pass.

    Args:
        output_dir: the run's folder.
        passes: the arguments of `ResultsWriter.add`, batch after batch.
        **settings: the other arguments of `ResultsWriter`.
    """
    with ResultsWriter(output_dir, **settings) as results:
        for arguments in passes:
            results.add(*arguments)
    return results.files


def _event_id(numbers: Any) -> tuple[int, int, int]:
    run, subrun, event = (int(number) for number in numbers)
    return run, subrun, event
