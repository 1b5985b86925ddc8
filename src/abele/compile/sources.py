"""Where executables come from, instead of being compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from abele.compile.executable import Executable
from abele.program import Program
from abele.targets import Target


class ExecutableSource(Protocol):
    """A place that has executables, and may keep more."""

    def load(
        self, programs: Sequence[Program], parts: Mapping[str, Any], target: Target
    ) -> Executable | None:
        """An executable with these key parts.

        Args:
            programs: as they are compiled.
            parts: see ``executable.key_parts``.
            target: what is to run them.

        Returns:
            It, or ``None`` if it is not there or cannot be used.
        """
        ...

    def why_missing(self, parts: Mapping[str, Any]) -> str:
        """Why nothing here has these key parts, in words."""
        ...

    def only_one(
        self, key: str, waiting: Callable[[], None]
    ) -> contextlib.AbstractContextManager[bool]:
        """While open, no other process makes the executable with this key for this place.

        Args:
            key: of the executable.
            waiting: called once if another process is making it.

        Returns:
            A context manager that gives whether the executable may be there by now.
        """
        ...

    def store(self, made: Executable) -> bool:
        """Keeps an executable for the next ``load``; says whether it did."""
        ...
