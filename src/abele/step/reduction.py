"""Reduction of the gradients of micro-batches and replicas to one.

    sum             acc += g                                   applied: acc
    mean, post      acc += g                                   applied: acc / N
    mean, running   acc = acc * k/(k+1) + g/(k+1)              applied: acc
    mean, post      loss / replicas before backward; acc += g  applied: acc / accumulation
      and loss

N counts micro-batches of one update, k those already in acc. Equal in exact arithmetic; a half
accumulator overflows under "post" where the running mean does not.
"""

from __future__ import annotations

import torch

from abele.step.config import MeanStrategy, Reduction, StepConfig
from abele.step.rounding import Write

#: The counter slot that holds k.
COUNTED = "micro_batches"


def runs_as_mean(config: StepConfig) -> bool:
    """Return whether accumulators hold the mean so far, which takes a counter."""
    return _mean_by(config, MeanStrategy.RUNNING) and config.micro_batches_per_update > 1


def loss_divisor(config: StepConfig) -> int:
    """Return what the loss is divided by before backward."""
    by_loss = _mean_by(config, MeanStrategy.POST_AND_LOSS)
    return config.replicas * config.processes if by_loss else 1


def accumulate(
    total: torch.Tensor, grad: torch.Tensor, counted: torch.Tensor | None, write: Write
) -> None:
    """Add one micro-batch's gradient to its accumulator."""
    if counted is None:
        if total.dtype is torch.float16:
            # Widened, so that the sum is rounded once and by ``write``.
            write(total, total.float() + grad.float())
        else:
            total.add_(grad.to(total.dtype))
        return
    share = 1 / (counted + 1)
    wide = torch.promote_types(total.dtype, torch.float32)
    write(total, total.to(wide) * (counted * share) + grad.to(wide) * share)


def replace(total: torch.Tensor, grad: torch.Tensor, write: Write) -> None:
    """Store a process's only gradient of an update in the accumulator."""
    if total.dtype is torch.float16:
        write(total, grad.float())
    else:
        total.copy_(grad)


def accumulate_share(
    total: torch.Tensor, grad: torch.Tensor, config: StepConfig, write: Write
) -> None:
    """Add one gradient's share of the mean, for accumulators that do not see every micro-batch.

    Parameters with one value per group of replicas get gradients of their group only, so a running
    mean over all micro-batches is not possible. Dividing first avoids overflow as well.

    Args:
        total: the accumulator, written in place.
        grad: the gradient, of any floating type.
        config: says how many gradients make one update.
        write: rounds the new value into ``total``.
    """
    wide = torch.promote_types(total.dtype, torch.float32)
    write(total, total.to(wide) + grad.to(wide) / config.micro_batches_per_update)


def reduced(total: torch.Tensor, config: StepConfig) -> torch.Tensor:
    """Return the gradient to apply, in the accumulator's type; never the accumulator itself."""
    divisor = 1
    if config.reduction is Reduction.MEAN and not runs_as_mean(config):
        divisor = config.micro_batches_per_update // loss_divisor(config)
    return total / divisor if divisor > 1 else total.clone()


def _mean_by(config: StepConfig, strategy: MeanStrategy) -> bool:
    return config.reduction is Reduction.MEAN and config.mean_strategy is strategy
