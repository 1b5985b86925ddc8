"""Connectionist temporal classification: the loss, and beam search over label sequences.

The loss has shapes that do not depend on the values of lengths: torch's own operator is the
computation; around it, the table of partial sums has the size of the longest possible target.
Beam search runs on the host: prefix search as by Graves (2006) and Hannun (2014). A beam is a label
sequence, its probability the sum over all alignments that spell it, in two parts, ending in a blank
or in its last label. Importing this module registers the operators.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from abele.ops._register import implements, register_gradient, shapes_of

aten = torch.ops.aten

_FORWARD = "abele::ctc_loss"
_BACKWARD = "abele::ctc_loss_backward"


@implements(
    _FORWARD,
    "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank,"
    " bool zero_infinity) -> (Tensor, Tensor)",
)
def _forward(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    loss, table = aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    padded = _table_like(log_probs, targets)
    padded[:, :, : table.shape[2]] = table
    padded[:, :, table.shape[2] :] = 0
    return loss, padded


@shapes_of(_FORWARD)
def _forward_shape(
    log_probs: torch.Tensor, targets: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return log_probs.new_empty((log_probs.shape[1],)), _table_like(log_probs, targets)


def _table_like(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return an empty CTC table ``[batch, time, 2 x longest possible target + 1]``."""
    return log_probs.new_empty((log_probs.shape[1], log_probs.shape[0], 2 * targets.shape[-1] + 1))


@implements(
    _BACKWARD,
    "(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths,"
    " Tensor loss, Tensor table, int blank, bool zero_infinity) -> Tensor",
)
def _backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    loss: torch.Tensor,
    table: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    longest = int(target_lengths.max())
    return aten._ctc_loss_backward.Tensor(
        grad,
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        loss,
        table[:, :, : 2 * longest + 1].contiguous(),
        blank,
        zero_infinity,
    ).contiguous()  # compiled code relies on the strides of the shape function below


@shapes_of(_BACKWARD)
def _backward_shape(grad: torch.Tensor, log_probs: torch.Tensor, *others: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    log_probs, targets, input_lengths, target_lengths, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(log_probs, targets, input_lengths, target_lengths, *output)


def _gradient(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    result = backward(grad, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return result, None, None, None, None, None


register_gradient(_FORWARD, _gradient, _setup)

forward = torch.ops.abele.ctc_loss.default
backward = torch.ops.abele.ctc_loss_backward.default


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Compute ``torch.nn.functional.ctc_loss`` in a capturable form.

    Args:
        log_probs: [time, batch, classes], or [time, classes].
        targets: [batch, longest], or all of them in one vector.
        input_lengths: [batch] integers, a tensor or a sequence.
        target_lengths: likewise.
        blank: the class that separates labels.
        reduction: ``none``, ``mean`` (each divided by its target's length first) or ``sum``.
        zero_infinity: targets that do not fit count zero, and their gradient too.
    """
    device = log_probs.device
    lengths = [
        torch.as_tensor(each, dtype=torch.int64, device=device).reshape(-1)
        for each in (input_lengths, target_lengths)
    ]
    batched = log_probs.dim() == 3
    if not batched:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    # There is no kernel for narrower types.
    wide = log_probs if log_probs.dtype is torch.float64 else log_probs.float()
    loss, _ = forward(wide, targets, *lengths, blank, zero_infinity)
    loss = loss.to(log_probs.dtype)
    if zero_infinity:
        loss = torch.where(loss == torch.inf, 0.0, loss)
    if reduction == "mean":
        return (loss / lengths[1].to(loss.dtype).clamp_min(1)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss if batched else loss.squeeze(0)


# -- beam search ------------------------------------------------------------------------------

_SEARCH = "abele::ctc_beam_search"


@implements(
    _SEARCH,
    "(Tensor log_probs, Tensor lengths, int blank, int beam_width, int top_paths)"
    " -> (Tensor, Tensor, Tensor)",
)
def _search(
    log_probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, ...]:
    time, batch, _ = log_probs.shape
    host = log_probs.detach().to("cpu", torch.float64).numpy()
    scores = np.full((batch, top_paths), -np.inf)
    sizes = np.zeros((batch, top_paths), dtype=np.int32)
    paths = np.full((batch, top_paths, time), blank, dtype=np.int32)
    num_steps: list[int] = cast("Any", lengths).tolist()
    for sample, length in enumerate(num_steps):
        known = host[: max(length, 0), sample]
        for rank, (score, labels) in enumerate(_best(known, blank, beam_width, top_paths)):
            scores[sample, rank], sizes[sample, rank] = score, len(labels)
            paths[sample, rank, : len(labels)] = labels
    device = log_probs.device
    return (
        torch.as_tensor(scores, dtype=log_probs.dtype, device=device),
        torch.as_tensor(sizes, device=device),
        torch.as_tensor(paths, device=device),
    )


@shapes_of(_SEARCH)
def _search_shape(
    log_probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, ...]:
    time, batch, _ = log_probs.shape
    shape = (batch, top_paths)
    return (
        log_probs.new_empty(shape),
        log_probs.new_empty(shape, dtype=torch.int32),
        log_probs.new_empty((*shape, time), dtype=torch.int32),
    )


beam_search = torch.ops.abele.ctc_beam_search.default


def _best(log_probs: Any, blank: int, width: int, count: int) -> list[tuple[float, list[int]]]:
    """Return log probability and labels of the best beams of one sample, the best first.

    Args:
        log_probs: ``[time, classes]``.
        blank: the class between labels.
        width: beams that are kept after each step.
        count: beams that are returned.
    """
    beams: list[tuple[int, ...]] = [()]  # label sequences
    # Log probabilities of the alignments that end in a blank, and of those that end in a label.
    silent, spoken = np.zeros(1), np.full(1, -np.inf)
    for step in log_probs:
        last = np.array([beam[-1] if beam else -1 for beam in beams], dtype=np.int64)
        repeated = np.where(last >= 0, step[last], -np.inf)
        total = np.logaddexp(silent, spoken)
        silent_now, spoken_now = total + step[blank], spoken + repeated
        grown = total[:, None] + step[None, :]
        # The same label again is another one only behind a blank.
        named = np.flatnonzero(last >= 0)
        grown[named, last[named]] = silent[named] + repeated[named]
        grown[:, blank] = -np.inf
        # A beam that grows into another one adds to it.
        index = {beam: at for at, beam in enumerate(beams)}
        for child, beam in enumerate(beams):
            parent = index.get(beam[:-1]) if beam else None
            if parent is not None:
                spoken_now[child] = np.logaddexp(spoken_now[child], grown[parent, beam[-1]])
                grown[parent, beam[-1]] = -np.inf
        best = _largest(
            np.concatenate([np.logaddexp(silent_now, spoken_now), grown.ravel()]), width
        )
        stay = best[best < len(beams)]
        rows, labels = np.divmod(best[best >= len(beams)] - len(beams), grown.shape[1])
        pairs: Any = zip(rows.tolist(), labels.tolist(), strict=True)
        longer: list[tuple[int, ...]] = [(*beams[row], label) for row, label in pairs]
        beams = [beams[int(at)] for at in stay] + longer
        silent = np.concatenate([silent_now[stay], np.full(len(rows), -np.inf)])
        spoken = np.concatenate([spoken_now[stay], grown[rows, labels]])
    total = np.logaddexp(silent, spoken)
    return [(float(total[at]), [*beams[at]]) for at in _largest(total, count)]


def _largest(values: Any, count: int) -> Any:
    """Return positions of the largest finite values in descending order, ties in index order."""
    order = np.argsort(-values, kind="stable")[:count]
    return order[values[order] > -np.inf]
