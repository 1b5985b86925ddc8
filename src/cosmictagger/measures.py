"""Loss and metrics: cross entropy per pixel, weighted for rare classes, summed over planes.

For each plane ``sum(w * CE) / sum(w)`` over all pixels of the batch; the schemes differ in ``w``.
No Python decision depends on a value, so the loss can be captured into a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cosmictagger.config.keys import LossBalanceScheme
from cosmictagger.config.network import EventLabel, Network, Vertex, member
from cosmictagger.errors import DataError

LIGHT = (1.0, 1.5, 10.0)
"""Weights of a background, a cosmic and a neutrino pixel with scheme ``light``."""

EVEN = 0.3333
"""The total weight of the pixels of a class with scheme ``even``."""

PLANES = 3

Weights = Callable[[Tensor, Tensor], Tensor]


VERTEX_PARTS = ("vertex/detection", "vertex/localization")
EVENT_CLASSES = ("electron neutrino", "muon neutrino", "neutral current", "cosmic only")
"""Classes of events, in the order of their labels and scores; those of the original."""

COSMIC_ONLY = EVENT_CLASSES.index("cosmic only")

Heads = tuple[Sequence[Tensor], Tensor | None, tuple[Tensor, ...] | None]


def parted(outputs: Sequence[Tensor]) -> Heads:
    """Return the outputs of a network apart: logits of planes, event labels, vertices.

    Heads that the network lacks give None.
    """
    scores, more = outputs[:PLANES], tuple(outputs[PLANES:])
    event = more[0] if len(more) in (1, 1 + PLANES) else None
    return scores, event, more[-PLANES:] if len(more) >= PLANES else None


def total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of a loss's parts; of one the very tensor."""
    return sum(parts[1:], start=parts[0])


class Loss(nn.Module):
    """The cross-entropy loss with a configured weighting of classes, plus the losses of heads.

    * ``none``: every pixel counts the same.
    * ``light``: fixed weights by class, ``LIGHT``.
    * ``even``: each class counts the same in total, ``EVEN / (count + 1)`` per pixel; counted over
      the plane's batch. A class without pixels has no part in it.
    * ``focal``: ``(1 - p)**2`` with p the probability of the true class (Lin et al.,
      arXiv:1708.02002), but divided by the sum of weights: a weighted mean.

    Args:
        scheme: a ``LossBalanceScheme``, its name or its number.
        network: its heads have their losses; None for none.

    Attributes:
        names: of the parts of the loss, the first one is that of the pixels.
        targets: the fields of a batch that the loss compares with, in the order of arguments.
    """

    def __init__(self, scheme: LossBalanceScheme | str | int, network: Network | None = None):
        super().__init__()
        self.classification = EventLabel() if network is None else network.classification
        self.vertex = Vertex() if network is None else network.vertex
        heads = self.classification.active, self.vertex.active
        self.names = ("segmentation", *("event_label",) * heads[0], *VERTEX_PARTS * heads[1])
        self.targets = ("label", *("event_label",) * any(heads), *("vertex",) * heads[1])
        self.scheme = member(LossBalanceScheme, scheme, "mode.optimizer.loss_balance_scheme")
        self._weights = _SCHEMES.get(self.scheme)

    def forward(self, outputs: Sequence[Tensor], *targets: Tensor) -> Tensor:
        """Return the loss of a batch: a float32 scalar for outputs of any type.

        Args:
            outputs: for each plane logits ``[B, 3, H, W]``, then those of the network's heads.
            targets: what ``self.targets`` names: int64 ``[B, 3, H, W]``, the class of each pixel,
                one channel for each plane; with heads int64 ``[B]``, the event's label; with that
                for vertices float ``[B, 3, 2]``, the place in each plane as fractions of rows and
                columns, which nobody reads where there is no neutrino.
        """
        return total(self.parts(outputs, *targets))

    def parts(self, outputs: Sequence[Tensor], *targets: Tensor) -> tuple[Tensor, ...]:
        """Return the terms of the loss in the order of ``names``; arguments as in ``forward``."""
        label, *truths = targets
        scores, event, boxes = parted(outputs)
        losses = [self._of_plane(plane, label[:, p]) for p, plane in enumerate(scores)]
        parts = [torch.stack(losses).sum()]
        if self.classification.active:
            assert event is not None  # the network has this head
            entropy = functional.cross_entropy(event.float(), truths[0])
            parts.append(self.classification.weight * entropy)
        if self.vertex.active:
            assert boxes is not None  # likewise
            event_label, vertex = truths
            planes = [_of_boxes(each, event_label, vertex[:, p]) for p, each in enumerate(boxes)]
            factors = self.vertex.l_det / len(label), PLANES * self.vertex.l_coord
            terms = zip(factors, zip(*planes, strict=True), strict=True)
            parts += [self.vertex.weight * f * torch.stack(each).sum() for f, each in terms]
        return tuple(parts)

    def _of_plane(self, scores: Tensor, label: Tensor) -> Tensor:
        entropy = functional.cross_entropy(scores.float(), label, reduction="none")
        if self._weights is None:
            return entropy.mean()
        weights = self._weights(entropy.detach(), label)
        # Where every pixel is certainly right, focal weights are all zero: no loss, not 0 / 0.
        total = weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
        return (weights * entropy).sum() / total

    def extra_repr(self) -> str:
        """Return the name of the weighting scheme, for the module's repr."""
        return self.scheme.name


def _of_boxes(boxes: Tensor, event: Tensor, vertex: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over events and boxes of a plane of the losses of detection and place.

    Detection is a cross entropy with focal weights, ``(1 - p)**2`` with p the score of what is
    true, here not kept out of the gradient. The place counts in the true box alone.
    """
    score, *place = boxes.float().unbind(dim=1)
    true = (event != COSMIC_ONLY)[:, None, None]
    off = torch.zeros_like(score)
    for axis, size in enumerate(score.shape[1:]):
        at = (vertex[:, axis].float() * size)[:, None, None]
        shape = (-1, 1) if axis == 0 else (1, -1)
        true = true & (torch.arange(size, device=at.device).reshape(shape) == at.floor())
        off = off + (at - at.floor() - place[axis]).square()
    entropy = functional.binary_cross_entropy(score, true.to(score.dtype), reduction="none")
    wrong = torch.where(true, 1 - score, score)
    return (wrong.square() * entropy).sum(), torch.where(true, off, 0.0).sum()


def _even(entropy: Tensor, label: Tensor) -> Tensor:
    # Adding floats is several times faster than counting, and as exact up to 2**24 rare pixels.
    cosmic, neutrino = ((label == kind).to(torch.float32).sum() for kind in (1, 2))
    background = label.numel() - cosmic - neutrino
    return _by_class(label, [EVEN / (count + 1) for count in (background, cosmic, neutrino)])


def _focal(entropy: Tensor, label: Tensor) -> Tensor:
    # exp(-CE) is the softmax probability of the true class; expm1 keeps small differences to one.
    return torch.expm1(-entropy).square()


def _by_class(label: Tensor, weights: Sequence[Tensor]) -> Tensor:
    background, cosmic, neutrino = weights
    return torch.where(label == 0, background, torch.where(label == 1, cosmic, neutrino))


_SCHEMES: Mapping[LossBalanceScheme, Weights] = {
    LossBalanceScheme.light: lambda e, label: _by_class(label, [e.new_full((), w) for w in LIGHT]),
    LossBalanceScheme.even: _even,
    LossBalanceScheme.focal: _focal,
}


CLASSES = 3
COSMIC, NEUTRINO = 1, 2

NAMES = ("Total_Accuracy", "Cosmic_IoU", "Neutrino_IoU", "Non_Bkg_Accuracy", "mIoU")
PLACES = ("Average", *(f"plane{plane}" for plane in range(PLANES)))
KEYS = tuple(f"{place}/{name}" for place in PLACES for name in NAMES)
"""Metric names in CosmicTagger's order."""

CHARGE_NAMES = (
    *NAMES,
    *(f"{kind}_{name}" for kind in ("Cosmic", "Neutrino") for name in ("Efficiency", "Purity")),
)
CHARGE_KEYS = tuple(f"charge/{place}/{name}" for place in PLACES for name in CHARGE_NAMES)
"""The keys of the same metrics over pixels with charge, and of efficiency and purity there."""

Scores = Tensor | Sequence[Tensor]
Counts = NDArray[np.int64]


def compute(scores: Scores, label: Tensor) -> dict[str, float]:
    """Return the metrics of a batch: per plane the mean over images, then the mean over planes.

    Args:
        scores: for each plane logits ``[B, 3, H, W]``, or int64 labels ``[B, 3, H, W]`` of all.
        label: int64 ``[B, 3, H, W]``, the true classes.

    Returns:
        Values by ``KEYS``, in that order; NaN for what no image of the batch has.
    """
    return of_batch(counts(scores, label))


def of_batch(table: Counts) -> dict[str, float]:
    """Return the metrics of a batch from its confusion ``counts``, perhaps of several instances."""
    return _named(_mean(_values(table), axis=0))


def per_event(
    scores: Scores, label: Tensor, charge: Tensor | None = None
) -> list[dict[str, float]]:
    """Return the metrics of each image by itself; arguments, keys and errors as in ``compute``.

    Args:
        scores: see ``compute``.
        label: see ``compute``.
        charge: bool ``[B, 3, H, W]``: add ``CHARGE_KEYS``, the metrics over these pixels alone.
    """
    predicted = scores if isinstance(scores, Tensor) else _highest_of_all(scores)
    rows = [_named(values) for values in _values(counts(predicted, label))]
    if charge is not None:
        seen = _values(counts(predicted, label, charge))
        rows = [row | _named(each, CHARGE_KEYS) for row, each in zip(rows, seen, strict=True)]
    return rows


def average(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the rows where it is not NaN.

    So a pass over many events is not spoilt by one without labelled pixels. NaN where none has it.
    """
    collected: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            collected.setdefault(key, []).append(value)
    return {key: float(_mean(np.array(values), axis=0)) for key, values in collected.items()}


def _highest_of_all(logits: Sequence[Tensor]) -> Tensor:
    return torch.stack([_highest(scores) for scores in logits], dim=1)


def _highest(scores: Tensor) -> Tensor:
    """Return the argmax over classes (first of ties), uint8 ``[B, H, W]``; faster than torch's."""
    background, cosmic, neutrino = scores.unbind(dim=1)
    is_cosmic = (cosmic > background).to(torch.uint8)
    is_neutrino = neutrino > torch.maximum(background, cosmic)
    return is_cosmic.masked_fill_(is_neutrino, NEUTRINO)


def counts(scores: Scores, label: Tensor, charge: Tensor | None = None) -> Counts:
    """Return how many pixels of each true class got each label.

    Args:
        scores: for each plane logits ``[B, 3, H, W]``, or int64 labels ``[B, 3, H, W]`` of all.
        label: int64 ``[B, 3, H, W]``.
        charge: bool ``[B, 3, H, W]``, the pixels to count; default all.

    Returns:
        ``[B, plane, true class, predicted class]``. Summed over the first axis it is the
        confusion matrix of each plane.
    """
    predicted = scores if isinstance(scores, Tensor) else _highest_of_all(scores)
    if predicted.shape != label.shape or label.ndim != 4 or label.shape[1] != PLANES:
        raise DataError(
            f"Metrics of labels {list(predicted.shape)} against {list(label.shape)} were asked "
            f"for. Both have to be [B, {PLANES}, H, W]."
        )
    _check_classes(predicted, "predicted")
    _check_classes(label, "true")
    truth = label.to(torch.uint8) * CLASSES
    pairs = (truth + predicted.to(label.device, torch.uint8)).cpu().numpy()
    if charge is not None:
        pairs = np.where(charge.cpu().numpy(), pairs, np.uint8(CLASSES**2))
    # One byte per pixel leaves the device; numpy counts bytes far faster than torch.
    pairs = pairs.reshape(len(label) * PLANES, label.shape[2] * label.shape[3])
    per_image = np.array([np.bincount(pair, minlength=CLASSES**2 + 1) for pair in pairs], np.int64)
    return per_image[..., : CLASSES**2].reshape(-1, PLANES, CLASSES, CLASSES)


def _check_classes(label: Tensor, kind: str) -> None:
    if not label.numel():
        return
    low, high = (int(value) for value in label.aminmax())
    if low < 0 or high >= CLASSES:
        raise DataError(
            f"A {kind} class of {low if low < 0 else high} was found. Classes are 0 (background), "
            "1 (cosmic) and 2 (neutrino)."
        )


def _values(table: Counts) -> NDArray[np.float64]:
    """``[B, plane, true, predicted]`` to ``[B, plane, name]`` in the order of ``CHARGE_NAMES``."""
    cosmic, neutrino = _iou(table, COSMIC), _iou(table, NEUTRINO)
    right = np.diagonal(table, axis1=2, axis2=3)
    return np.stack(
        [
            _ratio(right.sum(2), table.sum((2, 3)), np.nan),
            cosmic,
            neutrino,
            _ratio(right[:, :, 1:].sum(2), table[:, :, 1:].sum((2, 3)), np.nan),
            (cosmic + neutrino) / 2,
            *(
                _ratio(right[:, :, kind], table.sum(axis)[:, :, kind], np.nan)
                for kind in (COSMIC, NEUTRINO)
                for axis in (3, 2)
            ),
        ],
        axis=2,
    )


def _iou(table: Counts, kind: int) -> NDArray[np.float64]:
    """Return the intersection over union of a class; 1 if neither true nor predicted."""
    both = table[:, :, kind, kind]
    return _ratio(both, table[:, :, kind].sum(2) + table[:, :, :, kind].sum(2) - both, 1.0)


def _ratio(part: Counts, whole: Counts, empty: float) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), empty)


def _mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Return the mean of the values that are not NaN; NaN if all are."""
    defined = ~np.isnan(values)
    total = np.where(defined, values, 0.0).sum(axis)
    return np.where(defined.any(axis), total / np.maximum(defined.sum(axis), 1), np.nan)


def _named(planes: NDArray[np.float64], keys: Sequence[str] = KEYS) -> dict[str, float]:
    """``[plane, name]`` to a dictionary of the first names, the mean over planes first."""
    rows = np.concatenate([_mean(planes, axis=0)[None], planes])[:, : len(keys) // len(PLACES)]
    return dict(zip(keys, map(float, rows.reshape(-1)), strict=True))


VERTEX_NAMES = ("VertexDetection", "VertexResolution")
EVENT_KEY = "Average/EventLabel"
VERTEX_KEYS = tuple(f"{place}/{name}" for place in PLACES for name in VERTEX_NAMES)

Table = NDArray[np.float64]


def vertices(boxes: Sequence[Tensor]) -> Tensor:
    """Return the place of the vertex by the best box of each plane and the place inside of it.

    Args:
        boxes: for each plane ``[B, 3, h, w]``: score, and row and column inside of the box.

    Returns:
        float32 ``[B, 3, 2]`` on the host, row and column as shares of the image.
    """
    best, inside, size = _best(boxes)
    return (best + inside) / size


def _best(boxes: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return row and column of the best boxes, ``[B, 3, 2]``, the place inside, and ``[3, 2]``."""
    best, inside = [], []
    for each in boxes:
        number = each[:, 0].float().flatten(1).argmax(1)
        chosen = number[:, None, None].expand(-1, 2, 1)
        inside.append(each[:, 1:].float().flatten(2).gather(2, chosen)[..., 0])
        width = each.shape[3]
        best.append(torch.stack([number // width, number % width], dim=1))
    size = torch.tensor([each.shape[2:] for each in boxes])
    return torch.stack(best, 1).cpu(), torch.stack(inside, 1).cpu(), size


def of_heads(
    scores: Tensor | None,
    boxes: Sequence[Tensor] | None,
    label: Tensor,
    vertex: Tensor,
    size: NDArray[np.float64],
) -> Table:
    """Return what is right of the class and the vertices of each event, for ``head_means``.

    Args:
        scores: logits ``[B, 4]`` of the class of the event, or None.
        boxes: see ``vertices``; or None.
        label: int64 ``[B]``, the true class.
        vertex: float32 ``[B, 3, 2]``, the true place.
        size: ``[3, 2]``, height and width of the images in units of the file.

    Returns:
        ``[B, n]``: 1 where the class is right, else 0, if there are scores; then if there are
        boxes for each plane 1 or 0 for the right box, and how far the vertex is off, NaN in events
        whose vertex is not in the plane.
    """
    columns = []
    if scores is not None:
        right = scores.float().argmax(1).to(label.device) == label
        columns.append(right.cpu().numpy().astype(np.float64)[:, None])
    if boxes is not None:
        label, vertex = label.cpu(), vertex.cpu()
        best, _, number = _best(boxes)
        known = (label != COSMIC_ONLY)[:, None] & ((vertex >= 0) & (vertex < 1)).all(2)
        right = ((vertex * number).floor() == best).all(2)
        apart = (vertices(boxes) - vertex).numpy() * size
        planes = np.stack([right.numpy(), np.hypot(apart[..., 0], apart[..., 1])], axis=2)
        planes[~known.numpy()] = np.nan
        columns.append(planes.reshape(len(label), 2 * len(boxes)))
    return np.concatenate(columns, axis=1)


def head_means(table: Table) -> dict[str, float]:
    """Return the metrics of heads: means over the events that have them, then over planes.

    Args:
        table: of ``of_heads``, perhaps of several batches; one row for one event by itself.

    Returns:
        ``EVENT_KEY``, ``VERTEX_KEYS`` or both, as the table has; NaN for what no event has.
    """
    means = _mean(table, axis=0)
    values = {EVENT_KEY: float(means[0])} if len(means) % 2 else {}
    if len(means) > 1:
        values |= _named(means[len(values) :].reshape(PLANES, -1), VERTEX_KEYS)
    return values


def losses(loss: Tensor | None, parts: Mapping[str, Tensor]) -> dict[str, float]:
    """Return a loss and its parts by the names of the records; without parts the loss alone."""
    values = {f"loss/{name}": float(value) for name, value in parts.items()}
    return {} if loss is None else {"loss": float(loss), **values}
