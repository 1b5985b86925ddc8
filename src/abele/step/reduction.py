"""Reduction of the gradients of micro-batches and replicas: sum or mean.

    sum             acc += g                                   applied: acc
    mean, post      acc += g                                   applied: acc / N
    mean, running   acc = acc * k/(k+1) + g/(k+1)              applied: acc
    mean, post      loss / replicas before backward; acc += g  applied: acc / accumulation
      and loss

N counts micro-batches of one update, k those already in acc. Equal in exact arithmetic; a half
accumulator overflows under "post" where the running mean does not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from abele.step.config import MeanStrategy, Reduction, StepConfig

#: The counter slot that holds k.
COUNTED = "micro_batches"


def runs_as_mean(config: StepConfig) -> bool:
    """Return whether accumulators hold a running mean, which takes a counter."""
    return _mean_by(config, MeanStrategy.RUNNING) and config.micro_batches_per_update > 1


def loss_divisor(config: StepConfig) -> int:
    """Return the divisor of the loss before backward."""
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
    """Return the reduced gradient of an accumulator, in its dtype, as a new tensor."""
    divisor = 1
    if config.reduction is Reduction.MEAN and not runs_as_mean(config):
        divisor = config.micro_batches_per_update // loss_divisor(config)
    return total / divisor if divisor > 1 else total.clone()


def _mean_by(config: StepConfig, strategy: MeanStrategy) -> bool:
    return config.reduction is Reduction.MEAN and config.mean_strategy is strategy


Write = Callable[[torch.Tensor, torch.Tensor], object]

_LARGEST = torch.finfo(torch.float16).max
# Fields of float32 bits: halves are spaced by 2^-10 of their power of two, at least by 2^-24.
_EXPONENT = 0x7F800000
_SMALLEST_NORMAL = (127 - 14) << 23
_TEN_BINADES = 10 << 23


def stochastic_half(value: torch.Tensor) -> torch.Tensor:
    """Round float32 values to float16 so that the expected result equals the value.

    Halves stay what they are. Beyond the largest half, where only one neighbour is finite, values
    round to nearest; infinities and NaN pass. Draws one random number per element from the stream
    of the program.

    Returns:
        float16, same shape.
    """
    bits = value.view(torch.int32) & _EXPONENT
    spacing = (bits.clamp(min=_SMALLEST_NORMAL) - _TEN_BINADES).view(torch.float32)
    # Dividing by a power of two and taking the fraction of so small a number are both exact.
    steps = value / spacing
    below = steps.floor()
    up = torch.rand_like(value) < steps - below
    rounded = (below + up) * spacing
    return torch.where(value.abs() < _LARGEST, rounded, value).to(torch.float16)


def write_nearest(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``value`` into ``target``, rounding to nearest, ties to even."""
    target.copy_(value)


def write_stochastic(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``value`` into ``target``; round at random where the type narrows to float16."""
    if target.dtype is torch.float16 and value.dtype is not torch.float16:
        value = stochastic_half(value.float())
    target.copy_(value)


def writer(*, stochastic: bool) -> Write:
    """Return the function that writes updated tensors, rounding to nearest or at random."""
    return write_stochastic if stochastic else write_nearest
