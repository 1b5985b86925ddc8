"""`Options.Jit`: settings of the original's first way of capturing a model."""

import logging
from typing import Self

from poptorch.options import _table
from poptorch.options._container import OptionsDict

_logger = logging.getLogger("poptorch::python")


class _JitOptions(OptionsDict):
    """A deprecated option."""

    _store = "Jit"

    def __init__(self) -> None:
        super().__init__(**_table.defaults(self._store))

    def traceModel(self, trace_model: bool) -> Self:
        """Warn that there is only one way of capturing models.

        Args:
            trace_model: False is accepted.

        Raises:
            ValueError: True was given.
        """
        self.checkIsFrozen("traceModel")
        if trace_model:
            raise ValueError(
                "traceModel(True): tracing with torch.jit is no longer supported; remove the call"
            )
        _logger.warning("Jit.traceModel is deprecated and has no effect")
        return self
