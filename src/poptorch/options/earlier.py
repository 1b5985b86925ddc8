"""Option methods of releases before 3.4, for programs that still call them.

Each forwards to today's method or, where none is left, says once that it has no effect.
"""

import logging
from typing import Any, Self

from poptorch.enums import OutputMode, ReductionType

_logger = logging.getLogger("poptorch::python")
_logged: set[str] = set()


def say_once(old: str, instead: str) -> None:
    """Log the first use of a name from an earlier release.

    Args:
        old: the name.
        instead: what it does now.
    """
    if old not in _logged:
        _logged.add(old)
        _logger.warning("%s is of an earlier release of PopTorch: %s.", old, instead)


class EarlierOptions:
    """Root methods up to release 2.4."""

    outputMode: Any
    defaultOutputMode: Any
    _Popart: Any

    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> Self:
        """Set the output mode, as ``outputMode`` does (its name until 2.4).

        Args:
            anchor_mode: The choice.
            anchor_return_period: N of EveryN.
        """
        say_once("anchorMode", "outputMode is called")
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultAnchorMode(self) -> bool:
        """Tell whether the output mode is still open (``defaultOutputMode`` until 2.4)."""
        return self.defaultOutputMode()

    @property
    def Popart(self) -> Any:
        """The namespace ``_Popart``, as it was called in 2.0."""
        say_once("Options.Popart", "_Popart is meant")
        return self._Popart

    @property
    def _popart(self) -> Any:
        """The namespace ``_Popart``, as the original stores it and published programs reach it."""
        return self._Popart


class EarlierTraining:
    """A method of ``Training`` up to release 2.1."""

    accumulationAndReplicationReductionType: Any

    def accumulationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients combine, as ``accumulationAndReplicationReductionType`` does.

        Args:
            reduction_type: `ReductionType.Mean` or `ReductionType.Sum`.
        """
        say_once("accumulationReductionType", "accumulationAndReplicationReductionType is called")
        return self.accumulationAndReplicationReductionType(reduction_type)


class EarlierPrecision:
    """Methods of ``Precision`` up to release 3.0."""

    runningStatisticsAlwaysFloat: Any

    def runningVarianceAlwaysFloat(self, value: bool) -> Self:
        """Do what ``runningStatisticsAlwaysFloat`` does: warn.

        Args:
            value: Ignored.
        """
        return self.runningStatisticsAlwaysFloat(value)

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """Accept the switch of ``poptorch.autocast``; no effect.

        Args:
            autocast_enabled: Ignored.
        """
        say_once("autocastEnabled", "nothing is cast by itself, every operation keeps its type")
        return self

    def autocastPolicy(self, autocast_policy: Any) -> Self:
        """Accept a policy of ``poptorch.autocast``; no effect.

        Args:
            autocast_policy: Ignored.
        """
        say_once("autocastPolicy", "nothing is cast by itself, every operation keeps its type")
        return self
