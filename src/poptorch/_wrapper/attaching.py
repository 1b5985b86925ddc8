"""Tells the machine's tools while a wrapped model holds its device."""

from __future__ import annotations

from typing import Any

from abele.runtime.device_registry import Attachment
from poptorch._logging import logger


class Attaching:
    """What a wrapped model does when it takes its device or gives it up."""

    _attachment: Attachment | None = None

    @property
    def _attached(self) -> bool:
        return self._attachment is not None

    @_attached.setter
    def _attached(self, value: bool) -> None:
        if value == self._attached:
            return
        if self._attachment is not None:
            self._attachment.end()
            self._attachment = None
            return
        executor: Any = self
        compiled = executor._compiled
        self._attachment = Attachment(self, compiled.record.target, compiled.device)
        if self._attachment.problem is not None:
            logger.debug(self._attachment.problem)
