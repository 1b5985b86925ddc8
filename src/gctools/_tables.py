"""Tables in boxes of plain characters, as wide as the terminal and no wider; rich draws them."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import ASCII2
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gctools._commands import clean

_LEAST = 8  # characters to which texts are cut when no more columns can go
_NO_LIMIT = 10_000  # characters, where a file or pipe takes any width


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: heading.
        align: ``left`` or ``right``.
        rank: columns with the highest rank are left out first if space is short; 0 always stays.
        least: least width to which texts are cut before columns are left out; 0 for no cut.
    """

    title: str
    align: Literal["left", "right"] = "left"
    rank: int = 0
    least: int = 0


Row = Sequence[str]


def table(
    columns: Sequence[Column], groups: Sequence[Sequence[Row]], width: int | None, title: str = ""
) -> str:
    """Format a table with a rule between groups of rows, cut to a width unless that is None."""
    texts = [[[clean(text) for text in row] for row in rows] for rows in groups]
    sizes = _fit(columns, [row for rows in texts for row in rows], width)
    made = Table(box=ASCII2, title=Text(clean(title)) if title else None, title_justify="left")
    for index, size in sizes.items():
        column = columns[index]
        made.add_column(column.title, justify=column.align, no_wrap=True, width=size)
    for rows in texts:
        for row in rows:
            made.add_row(*(Text(row[index]) for index in sizes))
        made.add_section()
    # A terminal too small for anything still gets the columns that always stay.
    return _drawn(made, None if width is None else max(width, _width(sizes)))


def box(parts: Sequence[str], width: int) -> str:
    """Format one line of text in a box of some width; the last part gets the remaining space."""
    made = Table(box=ASCII2, show_header=False, width=width)
    for part in parts[:-1]:
        made.add_column(justify="center", no_wrap=True, width=cell_len(part))
    made.add_column(justify="center", no_wrap=True, ratio=1)
    made.add_row(*(Text(clean(part)) for part in parts))
    return _drawn(made, width)


def _fit(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> dict[int, int]:
    """Return the numbers of the columns that stay, with their widths."""
    natural = {
        index: max(cell_len(text) for text in (column.title, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    }
    limit = _NO_LIMIT if width is None else width
    least = {i: min(size, columns[i].least or size) for i, size in natural.items()}
    while _width(least) > limit and (last := max(columns[index].rank for index in least)):
        least = {i: size for i, size in least.items() if columns[i].rank != last}
    if _width(least) > limit:
        least = {i: min(size, _LEAST) if columns[i].least else size for i, size in least.items()}
    spare = limit - _width(least)
    for index in least:
        extra = max(0, min(spare, natural[index] - least[index]))
        least[index] += extra
        spare -= extra
    return least


def _width(sizes: dict[int, int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(sizes.values()) + 3 * len(sizes) + 1


def _drawn(made: Table, width: int | None) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width or _NO_LIMIT, color_system=None)
    console.print(made, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
