"""Where a thing gets its name."""

from __future__ import annotations

import dataclasses

import libcst as cst

from abele.port.analysis.scopes import Variable
from abele.port.source import Source


class NoHomeError(Exception):
    """There is no one place where a thing gets its name."""


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a thing gets the name by which the program goes on.

    Attributes:
        source: the file.
        statement: that assigns it.
        variable: that it is assigned to.
    """

    source: Source
    statement: cst.SimpleStatementLine
    variable: Variable
