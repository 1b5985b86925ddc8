"""Findings about lines of a ported script, with their verdicts."""

from __future__ import annotations

import dataclasses
import enum


class Verdict(enum.Enum):
    """Verdicts of a port on a line of the script, from best to worst."""

    MATCH = "match"  # it stays, and means the same
    MODIFIED = "modified"  # it was changed
    MANUAL = "manual"  # somebody has to look at it
    BLOCKED = "blocked"  # it cannot be ported


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding of a porting rule about a line of the script.

    Attributes:
        code: code of the rule, such as ``ABP101``.
        path: path of the file, relative to the ported folder.
        line: line in the original, from 1.
        column: column, from 1.
        text: the original line, stripped.
        reason: the reason, in a sentence.
    """

    code: str
    verdict: Verdict
    path: str
    line: int
    column: int
    text: str
    reason: str

    def __str__(self) -> str:
        """Format a finding as ``file:line:column code verdict reason``."""
        where = f"{self.path}:{self.line}:{self.column}"
        return f"{where}: {self.code} {self.verdict.value}: {self.reason}"

    def with_line(self) -> str:
        """Format a finding with its source line below."""
        return f"{self}\n    {self.text}"


def docs_of(code: str) -> str:
    """Return the path of the page that explains a finding's code."""
    return f"docs/reference/port_codes.md#{code.lower()}"


#: What is said of a program, by its verdict.
SENTENCES = {
    Verdict.MATCH: "Nothing has to change: the program runs on abele as it stands.",
    Verdict.MODIFIED: "The program is ported; nothing is left to do by hand.",
    Verdict.MANUAL: "The program is ported, except for the lines marked 'manual': see to them by "
    "hand.",
    Verdict.BLOCKED: "The program cannot become a PopTorch program because of the lines marked "
    "'blocked'. Nothing is written.\n"
    "abele.compile trains this loop as it stands: decorate the step (docs/compile.md).",
}


def worst(findings: list[Finding]) -> Verdict:
    """Return the worst verdict of a port's findings."""
    order = list(Verdict)
    return max((each.verdict for each in findings), key=order.index, default=Verdict.MATCH)
