"""Connectionist temporal classification with shapes that do not depend on the lengths' values.

torch's own operator is the computation; around it, the table of partial sums has the size of the
longest possible target instead of the longest one. Importing this module registers the operators.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops._register import register_gradient, shapes_of

aten = torch.ops.aten

_FORWARD = "abele::ctc_loss"
_BACKWARD = "abele::ctc_loss_backward"
_TAGS = (torch.Tag.pt2_compliant_tag,)

torch.library.define(
    _FORWARD,
    "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank,"
    " bool zero_infinity) -> (Tensor, Tensor)",
    tags=_TAGS,
)
torch.library.define(
    _BACKWARD,
    "(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths,"
    " Tensor loss, Tensor table, int blank, bool zero_infinity) -> Tensor",
    tags=_TAGS,
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
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
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return log_probs.new_empty((log_probs.shape[1],)), _table_like(log_probs, targets)


def _table_like(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[batch, time, 2 x longest possible target + 1]."""
    return log_probs.new_empty((log_probs.shape[1], log_probs.shape[0], 2 * targets.shape[-1] + 1))


@torch.library.impl(_BACKWARD, "CompositeExplicitAutograd")
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
def _backward_shape(
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
    """Return what ``torch.nn.functional.ctc_loss`` computes, in a form that can be captured.

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
