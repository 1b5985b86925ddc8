"""Where the programs of two runs part, read off the texts that their records keep.

A text numbers its values, so the first operation that differs is the first line that does; comments
with lines of the user's source tell where it is, and do not count.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from abele.report.record import Change, Program

_CUT = "# cut off here"
_BODY = "):"  # the line before a program's operations
_SLOT = re.compile(r" {4}(?P<name>\w+),  # (?P<kind>.*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of a program's text.

    Attributes:
        text: ``v2 = aten.relu.default(v1)  # f32[4, 4]``.
        phase: ``forward``, ``backward`` or ``update``; empty outside these.
        line: the user's line, ``FILE:LINE in FUNCTION``; empty if unknown.
    """

    text: str
    phase: str
    line: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parted:
    """A program of two runs that is not the same in both.

    Attributes:
        name: of the program.
        slots: inputs and state of which type, shape or role differ: name, first, second; empty
            where a program has none of that name.
        operations: the first that differs, of each; None of one that has ended there. Both are
            None where the texts are the same.
        by: what made them differ: ``capture``, or the first pass; empty if unknown.
        constants: names of those whose values differ.
        fingerprints: of both; empty where a record lost its executable.
    """

    name: str
    slots: tuple[tuple[str, str, str], ...] = ()
    operations: tuple[Operation | None, Operation | None] = (None, None)
    by: str = ""
    constants: tuple[str, ...] = ()
    fingerprints: tuple[str, str] = ("", "")


def parted(first: Program, second: Program) -> Parted:
    """Where two programs of one name part, by their texts.

    Args:
        first: as it is recorded.
        second: likewise.

    Returns:
        Without slots and operations if the texts say the same, as far as they were kept.
    """
    before, after = slots(first), slots(second)
    names = dict.fromkeys([*before, *after])
    if not all(_BODY in _lines(each) for each in (first, second)):  # cut off among its inputs
        names = {name: None for name in names if name in before and name in after}
    return Parted(
        name=first.name,
        slots=tuple(
            (name, before.get(name, ""), after.get(name, ""))
            for name in names
            if before.get(name) != after.get(name)
        ),
        operations=_first_other(first, second),
        by=_maker(first.changes, second.changes),
    )


def slots(program: Program) -> dict[str, str]:
    """Type, shape and role of a program's inputs and state, by their names in its text."""
    lines = itertools.takewhile(lambda line: line != _BODY, _lines(program))
    matches = (_SLOT.fullmatch(line) for line in lines)
    return {match["name"]: match["kind"] for match in matches if match is not None}


def _first_other(first: Program, second: Program) -> tuple[Operation | None, Operation | None]:
    both = [list(_operations(each)) for each in (first, second)]
    cut = any(_is_cut(each) for each in (first, second))
    for one, other in zip(*both, strict=False) if cut else zip_longest(*both):
        if one is None or other is None or one.text != other.text:
            return one, other
    return None, None


def _operations(program: Program) -> Iterator[Operation]:
    """The operations of a text in their order, without one that is cut off."""
    phase = line = ""
    lines = itertools.dropwhile(lambda line: line != _BODY, _lines(program))
    for each in map(str.strip, lines):
        if each.startswith("# -- "):
            phase, line = each.removeprefix("# -- "), ""
        elif each.startswith("# "):
            line = each.removeprefix("# ")
        elif each not in ("", _BODY):
            yield Operation(text=each, phase="" if phase == "program" else phase, line=line)


def _lines(program: Program) -> list[str]:
    """The lines of a text that are whole."""
    lines = program.text.splitlines()
    return lines[:-2] if _is_cut(program) else lines


def _is_cut(program: Program) -> bool:
    return program.text.endswith(_CUT)


def _maker(first: Sequence[Change], second: Sequence[Change]) -> str:
    """What first made the programs differ; empty where nobody watched, or texts were cut off."""
    before, after = _texts(first), _texts(second)
    if not before or not after or any(_CUT in each for each in (*before.values(), *after.values())):
        return ""
    if before["capture"] != after["capture"]:
        return "capture"
    names = list(dict.fromkeys([*before, *after]))
    latest = before["capture"], after["capture"]
    for name in names:
        latest = before.get(name, latest[0]), after.get(name, latest[1])
        if latest[0] != latest[1]:
            return f"pass {name}"
    return ""


def _texts(changes: Sequence[Change]) -> Mapping[str, str]:
    """The program after capture and after each pass that changed it."""
    texts = {each.by: each.after for each in changes if each.after}
    return texts if "capture" in texts else {}
