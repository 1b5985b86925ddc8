"""What each pass did to a program, as lines of its text that went and came.

Names of nodes outlive a pass, so a line that is in both texts was not touched.
"""

from __future__ import annotations

from collections import Counter

from abele.program import Program, Stamp
from abele.program.printing import node_lines
from abele.report.record import Change

LONGEST = 16_000  # characters for a pass


class Changes:
    """Notes what passes do; called with the program before the first one and after each.

    Attributes:
        of_stamps: what each pass did, by the stamp that it left.
    """

    def __init__(self) -> None:
        self.of_stamps: dict[Stamp, Change] = {}
        self._stamps: tuple[Stamp, ...] = ()
        self._lines: list[str] = []

    def __call__(self, program: Program) -> None:
        """Note a program; if it is the one before with one more stamp, what that pass did."""
        before, lines = self._lines, node_lines(program)
        known, self._stamps, self._lines = self._stamps, program.history, lines
        if not known or program.history[:-1] != known:
            return
        stamp = program.history[-1]
        removed, added = _without(before, lines), _without(lines, before)
        said = [f"- {line}" for line in removed] + [f"+ {line}" for line in added]
        text = "\n".join(said)
        if len(text) > LONGEST:
            text = f"{text[:LONGEST]}\n# cut off here"
        self.of_stamps[stamp] = Change(
            by=stamp.by, removed=len(removed), added=len(added), text=text
        )


def _without(lines: list[str], others: list[str]) -> list[str]:
    """The lines that the others do not have, or have less often."""
    left = Counter(others)
    kept: list[str] = []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            kept.append(line)
    return kept
