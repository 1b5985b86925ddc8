"""Switches of stochastic rounding: accepted, said once."""

from __future__ import annotations

from typing import Any

from sambaflow.logging import hint

_WHY = "sums and updates here are made in float32 and rounded once, to nearest"


def enable_conv_grad_accum_stoc(*unused: Any) -> None:
    """Accepted: gradients of convolutions are not rounded at random here."""
    hint("enable_conv_grad_accum_stoc", _WHY)


def enable_addbias_grad_accum_stoc(*unused: Any) -> None:
    """Accepted: gradients of biases are not rounded at random here."""
    hint("enable_addbias_grad_accum_stoc", _WHY)


def disable_sgd_stoc(*unused: Any) -> None:
    """Accepted: updates are not rounded at random here."""
    hint("disable_sgd_stoc", _WHY)
