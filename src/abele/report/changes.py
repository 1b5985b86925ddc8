"""Lines that each pass removed from and added to the text of a program.

Names of nodes outlive a pass, so a line that is in both texts was not touched.
"""

from __future__ import annotations

from collections import Counter

from abele.program import Program, Stamp
from abele.program.printing import node_lines
from abele.report.record import Change

LONGEST = 16_000  # characters for what a pass changed
WHOLE = 400_000  # and for the program after it


class Changes:
    """Notes what passes do; called with the program before the first one and after each.

    Attributes:
        of_stamps: what capture and each pass did, by the stamp that it left.
    """

    def __init__(self) -> None:
        self.of_stamps: dict[Stamp, Change] = {}
        self._stamps: tuple[Stamp, ...] = ()
        self._lines: list[str] = []

    def __call__(self, program: Program) -> None:
        """Note a program; if it is the one before with one more stamp, what that pass did."""
        before, lines = self._lines, node_lines(program)
        known, self._stamps, self._lines = self._stamps, program.history, lines
        if len(program.history) == 1:
            (stamp,) = program.history
            count, after = len(lines), _cut("\n".join(lines), WHOLE)
            self.of_stamps[stamp] = Change(
                by=stamp.by, removed=0, added=count, text="", after=after
            )
        if not known or program.history[:-1] != known:
            return
        stamp = program.history[-1]
        removed, added = _without(before, lines), _without(lines, before)
        said = [f"- {line}" for line in removed] + [f"+ {line}" for line in added]
        self.of_stamps[stamp] = Change(
            by=stamp.by,
            removed=len(removed),
            added=len(added),
            text=_cut("\n".join(said), LONGEST),
            after=_cut("\n".join(lines), WHOLE) if said else "",
        )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n# cut off here"


def _without(lines: list[str], others: list[str]) -> list[str]:
    """Return the lines that the other text lacks, or has less often."""
    left = Counter(others)
    kept: list[str] = []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            kept.append(line)
    return kept
