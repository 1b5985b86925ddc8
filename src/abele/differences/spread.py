"""How far two results of one operation are apart, and how far each is from float64's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

_MARGIN = 10.0
_NOTHING_ELSE = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """Norms over one tensor.

    Attributes:
        scale: norm of float64's result.
        first: norm of the first result's error.
        second: norm of the second result's error.
        apart: norm of the difference between the two; infinite if they are not finite in the same
            places.
        seen: norm of the error that rounding makes here: that of the interpreter in float32.
        elements: how many elements differ, of how many.
    """

    scale: float
    first: float
    second: float
    apart: float
    seen: float
    elements: tuple[int, int]

    def parted(self, tolerance: float) -> bool:
        """Whether they differ by more than rounding.

        Args:
            tolerance: relative to the tensor's norm. Beyond that, ten times the rounding that was
                seen is allowed. A tensor that is nothing but rounding in float32, such as a
                gradient that is zero in exact arithmetic, never counts.
        """
        if math.isinf(self.apart):
            return True
        return not self.only_rounding and self.apart > tolerance * self.scale + _MARGIN * self.seen

    @property
    def only_rounding(self) -> bool:
        """Whether even float32's result is nothing but rounding."""
        return self.seen > _NOTHING_ELSE * self.scale

    def relative(self, norm: float) -> float:
        """A norm relative to the scale."""
        return norm / self.scale if self.scale else (0.0 if not norm else math.inf)


def spread(
    truth: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    plain: torch.Tensor | None = None,
) -> Spread:
    """Compare two results with float64's and with each other.

    Args:
        truth: computed in float64.
        first: of the same shape.
        second: likewise.
        plain: the interpreter's in float32; by default, the first.
    """
    seen = _error(_plain(truth), _plain(first if plain is None else plain))
    wanted, one, two = _plain(truth), _plain(first), _plain(second)
    differ = int(((one != two) & ~(one.isnan() & two.isnan())).sum())
    finite = wanted.isfinite() & one.isfinite() & two.isfinite()
    alike = bool((one.isfinite() == two.isfinite()).all())
    return Spread(
        scale=_norm(wanted[wanted.isfinite()]),
        first=_error(wanted, one),
        second=_error(wanted, two),
        apart=_norm((one - two)[finite]) if alike else math.inf,
        seen=seen,
        elements=(differ, finite.numel()),
    )


def error(truth: torch.Tensor, value: torch.Tensor) -> float:
    """Norm of a result's error relative to that of float64's; infinite where only one is finite."""
    wanted = _plain(truth)
    far, scale = _error(wanted, _plain(value)), _norm(wanted[wanted.isfinite()])
    return far / scale if scale else (0.0 if not far else math.inf)


def _error(wanted: torch.Tensor, value: torch.Tensor) -> float:
    """Norm of an error; infinite if the two are not finite in the same places."""
    finite = wanted.isfinite()
    if not bool((finite == value.isfinite()).all()):
        return math.inf
    return _norm((value - wanted)[finite])


def _norm(tensor: torch.Tensor) -> float:
    untyped: Any = tensor
    return untyped.norm().item()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """All numbers of a tensor in float64."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.detach().double().flatten()
