"""`Options.Precision`: how numbers are rounded and summed."""

import logging
from typing import Self

import torch

from poptorch._error import require
from poptorch.enums import HalfFloatCastingBehavior
from poptorch.options import _table
from poptorch.options._container import OptionsDict
from poptorch.options.earlier import EarlierPrecision
from poptorch.options.popart import _PopartOptions

_logger = logging.getLogger("poptorch::python")

_PARTIALS = {torch.float32: "float", torch.float16: "half"}


class _PrecisionOptions(EarlierPrecision, OptionsDict):
    """Rounding, partial sums and floating-point exceptions.

    Args:
        popart_options: Where the settings meant for the compiler are stored.
    """

    _store = "Precision"

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(_popart=popart_options, **_table.defaults(self._store))

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """Do nothing but warn: half and float operands follow torch's promotion rules.

        Args:
            half_float_casting: Ignored.
        """
        self._deprecated("halfFloatCasting", "torch's type promotion always applies")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Do nothing but warn: running statistics keep the type of their module.

        Args:
            value: Ignored.

        Raises:
            ValueError: `value` is not a bool.
        """
        if not isinstance(value, bool):
            raise ValueError(
                f"runningStatisticsAlwaysFloat needs to be set to a bool, not {value!r}"
            )
        self._deprecated(
            "runningStatisticsAlwaysFloat", "running statistics keep their module's type"
        )
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Ask that invalid operations, divisions by zero and overflows stop the run.

        The call then raises `RecoverableError`, which names the operator, the module and the
        line that first made an infinity or NaN of values that were none. State is as after the
        last complete weight update. Infinities that come from inputs or constants are no
        exception; a comparison by order (`<`, `<=`, `>`, `>=`) with a NaN is one. Every
        micro-batch waits for the device, and the program grows.

        Differs from the original: works per tensor. An operation of which an operand holds an
        infinity somewhere is watched for NaN only.

        Args:
            enabled: Whether to stop.
        """
        require(
            isinstance(enabled, bool),
            f"enableFloatingPointExceptions needs to be set to a bool, not {enabled!r}",
        )
        self._popart.set("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Ask that updates of half-precision tensors are rounded at random, right on average.

        Differs from the original: concerns weights, optimizer state and gradient accumulators;
        half activations round to nearest.

        Args:
            enabled: Whether to; no effect on inference.
        """
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Choose the type of partial sums in matrix products and convolutions.

        Differs from the original: no effect; sums are kept in float32 or better.

        Replaces all convolution options, those of `Training.setConvolutionDithering` included.

        Args:
            dtype: torch.float32 or torch.float16.

        Raises:
            ValueError: Anything else was given.
        """
        self.checkIsFrozen("partialsTypeMatMuls")
        if not isinstance(dtype, torch.dtype) or dtype not in _PARTIALS:
            raise ValueError(f"setPartialsType takes torch.float or torch.half, not {dtype!r}")
        self._popart.set("partialsTypeMatMuls", _PARTIALS[dtype])
        self._popart.set("convolutionOptions", {"partialsType": _PARTIALS[dtype]})
        return self

    def _deprecated(self, name: str, instead: str) -> None:
        self.checkIsFrozen(name)
        _logger.warning("Precision.%s is deprecated and has no effect: %s", name, instead)
