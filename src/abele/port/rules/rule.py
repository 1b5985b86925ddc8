"""The type of a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from abele.port.context import Context


class Rule(NamedTuple):
    """A construct and what is done with it.

    Attributes:
        title: of the construct.
        codes: that it gives, each with what it stands for.
        apply: changes a program and says what it did.
    """

    title: str
    codes: dict[str, str]
    apply: Callable[[Context], None]
