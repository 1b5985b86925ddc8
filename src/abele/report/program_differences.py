"""Differences between the programs of two runs, from executables and the texts in records.

A text numbers its values, so the first operation that differs is on the first line that differs.
Comments give the line of the user's source and do not count.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from abele.errors import CorruptExecutable
from abele.report import executable_file
from abele.report.record import Change, Program, Run
from abele.report.run_differences import programs_of_both
from abele.storage.container import Container

_CUT = "# cut off here"
_BODY = "):"  # the line before a program's operations
_SLOT = re.compile(r" {4}(?P<name>\w+),  # (?P<kind>.*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation in the text of a program.

    Attributes:
        text: ``v2 = aten.relu.default(v1)  # f32[4, 4]``.
        phase: ``forward``, ``backward`` or ``update``; empty outside these.
        line: the user's line, ``FILE:LINE in FUNCTION``; empty if unknown.
    """

    text: str
    phase: str
    line: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramDifference:
    """The difference between two programs of one name.

    Attributes:
        name: name of the program.
        slots: inputs and state whose type, shape or role differs, as (name, first, second); an
            empty string means that a program has none of that name.
        operations: the first operation of each that differs; None if a program ends before it.
            Both are None if the texts are equal.
        by: ``capture`` or the first pass that made them differ; empty if unknown.
        constants: names of constants whose values differ.
        fingerprints: fingerprints of both; empty if an executable is missing.
    """

    name: str
    slots: tuple[tuple[str, str, str], ...] = ()
    operations: tuple[Operation | None, Operation | None] = (None, None)
    by: str = ""
    constants: tuple[str, ...] = ()
    fingerprints: tuple[str, str] = ("", "")


def _compare_texts(first: Program, second: Program) -> ProgramDifference:
    """Compare the texts of two programs as far as the records keep them."""
    before, after = slots(first), slots(second)
    names = dict.fromkeys([*before, *after])
    if not all(_BODY in _lines(each) for each in (first, second)):  # cut off among its inputs
        names = {name: None for name in names if name in before and name in after}
    return ProgramDifference(
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
    """Return type, shape and role of a program's inputs and state, by name in its text."""
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
    """Yield the operations of a text in order, without one that is cut off."""
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
    """Return the lines of a text without one that is cut off."""
    lines = program.text.splitlines()
    return lines[:-2] if _is_cut(program) else lines


def _is_cut(program: Program) -> bool:
    return program.text.endswith(_CUT)


def _maker(first: Sequence[Change], second: Sequence[Change]) -> str:
    """Return ``capture`` or the first pass that made the programs differ; empty if unknown."""
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
    """Return the text after capture and after each pass that changed the program."""
    texts = {each.by: each.after for each in changes if each.after}
    return texts if "capture" in texts else {}


def of_runs(runs: tuple[Run, Run], folders: tuple[Path, Path]) -> Iterator[ProgramDifference]:
    """Yield the differing programs, by fingerprint if both runs have executables, else by text."""
    known = fingerprints(folders[0]), fingerprints(folders[1])
    for name, (one, other) in programs_of_both(*runs).items():
        prints = known[0].get(name, ""), known[1].get(name, "")
        each = _compare_texts(one, other)
        by_text = bool(each.slots or any(each.operations))
        if prints[0] != prints[1] if all(prints) else by_text:
            constants = tuple(_constants(folders, name)) if all(prints) else ()
            yield dataclasses.replace(each, fingerprints=prints, constants=constants)


def fingerprints(folder: Path) -> dict[str, str]:
    """Return the fingerprints of programs by name; empty if the executable is unreadable."""
    try:
        with Container(folder / executable_file.FILE, executable_file.KIND) as file:
            return dict(file.content["programs"])
    except (OSError, CorruptExecutable, KeyError):
        return {}


def _constants(folders: tuple[Path, Path], program: str) -> Iterator[str]:
    """Yield the names of constants whose values differ."""
    prefix = f"constants/{program}/"
    kind = executable_file.KIND
    with (
        Container(folders[0] / executable_file.FILE, kind) as first,
        Container(folders[1] / executable_file.FILE, kind) as second,
    ):
        for name in first.names:
            shared = name.startswith(prefix) and name in second.names
            if shared and first.read(name) != second.read(name):
                yield name.removeprefix(prefix)
