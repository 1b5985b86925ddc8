"""Tables in boxes of plain characters, as wide as the terminal and no wider."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

_LEAST = 8  # characters to which texts are cut when no more columns can go


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        title: printed at its top.
        group: printed above the titles of neighbours with the same group.
        align: ``<``, ``^`` or ``>``.
        rank: when space is short columns go, that of the highest rank first; 0 always stays.
        least: to how many characters its texts may be cut before columns go; 0 if they may not.
    """

    title: str
    group: str = ""
    align: str = "<"
    rank: int = 0
    least: int = 0


Row = Sequence[str]


def width_of(stream: TextIO) -> int | None:
    """Columns of a terminal; None for a file or pipe, which takes any width."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return terminal_size().columns if stream.isatty() else None


def terminal_size() -> os.terminal_size:
    """Of the terminal that standard output is; a common one where nobody knows."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return os.terminal_size((80, 24))
    return found if found.columns and found.lines else os.terminal_size((80, 24))


def table(columns: Sequence[Column], groups: Sequence[Sequence[Row]], width: int | None) -> str:
    """A table with a rule between groups of rows.

    Args:
        columns: what is in a row.
        groups: rows of texts, each with one text per column.
        width: characters at most; columns are left out and cut to fit. None for no limit.
    """
    texts = [[[clean(text) for text in row] for row in rows] for rows in groups]
    kept, sizes = _fit(columns, texts, width)
    columns = [columns[i] for i in kept]
    rule = _rule(sizes)
    lines = []
    if any(column.group for column in columns):
        spans = _spans(columns, sizes)
        lines += [_rule([n for _, n in spans]), _line([_over(t, n) for t, n in spans])]
    lines += [
        rule,
        _line([_cut(c.title, n).center(n) for c, n in zip(columns, sizes, strict=True)]),
        rule,
    ]
    for rows in texts:
        for row in rows:
            cells = zip(columns, sizes, (row[i] for i in kept), strict=True)
            lines.append(_line([_placed(text, column, size) for column, size, text in cells]))
        lines.append(rule)
    return "\n".join(lines)


def box(parts: Sequence[str], width: int) -> str:
    """One line of text in a box of a given width; the last part takes what the others leave."""
    first = [len(part) + 2 for part in parts[:-1]]
    last = max(width - sum(first) - len(parts) - 1 - 2, _LEAST)
    texts = [part.center(size - 2) for part, size in zip(parts, first, strict=False)]
    line = _line([*texts, _cut(clean(parts[-1]), last).center(last)])
    rule = _rule([*(size - 2 for size in first), last])
    return "\n".join([rule, line, rule])


def clean(text: str) -> str:
    """Without what would move the cursor or change colours: others choose their command lines."""
    text = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    return re.sub(r" +", " ", text).strip()


def can_print(stream: TextIO, text: str) -> str:
    """A text with question marks for what a stream's encoding does not have."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _fit(
    columns: Sequence[Column], groups: list[list[list[str]]], width: int | None
) -> tuple[list[int], list[int]]:
    """Which columns stay, and their widths."""
    rows = [row for group in groups for row in group]
    natural = [
        max(_len(text) for text in (c.title, *(r[i] for r in rows))) for i, c in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while True:
        sizes, present = [natural[i] for i in kept], [columns[i] for i in kept]
        spare = None if width is None else width - sum(sizes) - 3 * len(sizes) - 1
        if spare is None or spare >= 0:
            return kept, _widened(present, sizes, spare)
        room = [max(0, n - c.least) if c.least else 0 for n, c in zip(sizes, present, strict=True)]
        last = max((column.rank for column in present), default=0)
        if sum(room) < -spare and last:
            kept = [i for i in kept if columns[i].rank != last]
            continue
        if sum(room) < -spare:
            room = [
                max(0, n - _LEAST) if c.least else 0 for n, c in zip(sizes, present, strict=True)
            ]
        return kept, _shrunk(sizes, room, -spare)


def _shrunk(sizes: list[int], room: list[int], excess: int) -> list[int]:
    """Takes from the widest first."""
    sizes, room = list(sizes), list(room)
    while excess > 0 and any(room):
        widest = max((n for n, free in enumerate(room) if free), key=lambda n: sizes[n])
        sizes[widest] -= 1
        room[widest] -= 1
        excess -= 1
    return sizes


def _widened(columns: Sequence[Column], sizes: list[int], spare: int | None) -> list[int]:
    """Gives the last column of a group what the group's title needs, as far as there is space."""
    sizes = list(sizes)
    end = 0
    for title, size in _spans(columns, sizes):
        end = _end_of(columns, end)
        wanted = max(0, len(title) - size)
        if spare is not None:
            wanted = min(wanted, spare)
            spare -= wanted
        sizes[end - 1] += wanted
    return sizes


def _end_of(columns: Sequence[Column], start: int) -> int:
    end = start + 1
    while end < len(columns) and columns[end].group == columns[start].group:
        end += 1
    return end


def _spans(columns: Sequence[Column], sizes: list[int]) -> list[tuple[str, int]]:
    spans, start = [], 0
    while start < len(columns):
        end = _end_of(columns, start)
        spans.append((columns[start].group, sum(sizes[start:end]) + 3 * (end - start - 1)))
        start = end
    return spans


def _over(title: str, size: int) -> str:
    """The title of a group in its space; two letters of it would say nothing."""
    return (_cut(title, size) if size >= min(len(title), _LEAST) else "").center(size)


def _rule(sizes: Sequence[int]) -> str:
    return "+" + "+".join("-" * (size + 2) for size in sizes) + "+"


def _line(texts: Sequence[str]) -> str:
    return "|" + "|".join(f" {text} " for text in texts) + "|"


def _placed(text: str, column: Column, size: int) -> str:
    text = _cut(text, size)
    space = size - _len(text)
    left = {"<": 0, ">": space, "^": space // 2}[column.align]
    return " " * left + text + " " * (space - left)


def _cut(text: str, size: int) -> str:
    if _len(text) <= size:
        return text
    dots = "..." if size > 6 else ""
    while _len(text) > size - len(dots):
        text = text[:-1]
    return text + dots


def _len(text: str) -> int:
    """Columns on a terminal: letters of some scripts take two, marks above letters none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def write(text: str, stream: TextIO | None = None) -> None:
    """Prints to a stream (standard output by default) whatever its encoding."""
    chosen = sys.stdout if stream is None else stream
    print(can_print(chosen, text), file=chosen, flush=True)
