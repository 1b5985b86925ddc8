"""Switches of stochastic rounding: accepted without effect, logged once."""

from typing import Any

from sambaflow.logging import hint

_WHY = "sums and updates here are made in float32 and rounded once, to nearest"


def enable_conv_grad_accum_stoc(*unused: Any) -> None:
    """Accept a rounding hint without effect: convolutions round to nearest."""
    hint("enable_conv_grad_accum_stoc", _WHY)


def enable_addbias_grad_accum_stoc(*unused: Any) -> None:
    """Accept a rounding hint without effect: bias gradients round to nearest."""
    hint("enable_addbias_grad_accum_stoc", _WHY)


def disable_sgd_stoc(*unused: Any) -> None:
    """Accept a rounding hint without effect: updates round to nearest."""
    hint("disable_sgd_stoc", _WHY)
