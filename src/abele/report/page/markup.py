"""HTML and SVG as text in which only what was made here is markup: any other string is text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias

_EMPTY = frozenset({"meta", "path", "rect", "line", "circle", "br"})


_LONG = 90  # characters
_SHOWN = 3  # programs that a section shows without a click


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Content: TypeAlias = "Html | str | int | float | Sequence[Content] | None"


def tag(element: str, *content: Content, **attributes: str | float | bool | None) -> Html:
    """Return an element.

    Args:
        element: its name.
        content: what is inside; plain strings are escaped.
        attributes: by name, ``class_`` for ``class`` and ``_`` for ``-``; None and False are left
            out, True has no value.
    """
    listed = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(str(value), quote=True)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _EMPTY:
        inner = html(*content)
        end = f">{inner}</{element}>" if inner else "/>"
        return Html(f"<{element}{listed}{end}")
    return Html(f"<{element}{listed}>{html(*content)}</{element}>")


def html(*content: Content) -> Html:
    """Return content as markup, one after the other."""
    parts: list[str] = []
    for each in content:
        if each is None:
            continue
        if isinstance(each, Html):
            parts.append(each)
        elif isinstance(each, str | int | float):
            parts.append(escape(str(each), quote=True))
        else:
            parts.extend(html(part) for part in each)
    return Html("".join(parts))


def section(title: str, *content: Content, name: str) -> Html:
    """Return a section with a title, which links can point to."""
    return tag("section", tag("h2", title), *content, id=name)


def table(
    heads: Sequence[str], rows: Sequence[Sequence[Content]], numbers: Sequence[int] = ()
) -> Html:
    """Return a table that scrolls where it is too wide.

    Args:
        heads: of the columns; none if there are none.
        rows: of cells.
        numbers: columns that are aligned right.
    """

    def cell(name: str, column: int, content: Content) -> Html:
        return tag(name, content, class_="number" if column in numbers else None)

    head = [cell("th" if text else "td", i, text) for i, text in enumerate(heads)]
    body = [tag("tr", [cell("td", i, text) for i, text in enumerate(row)]) for row in rows]
    top = tag("thead", tag("tr", head)) if head else None
    shown = tag("table", top, tag("tbody", body))
    named = ", ".join(filter(None, heads)) or "table"
    return tag("div", shown, class_="scroll", tabindex=0, role="group", aria_label=named)


def long_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Content]],
    *,
    numbers: Sequence[int] = (),
    most: int,
) -> Html:
    """Return a table of which what comes after the first rows is shown on demand.

    Args:
        heads: as of ``table``, likewise ``rows`` and ``numbers``.
        rows: of cells.
        numbers: columns that are aligned right.
        most: so many are shown at first, and some more if only few would be left.
    """
    if len(rows) <= most + most // 4:
        return table(heads, rows, numbers)
    rest = folded(f"{len(rows) - most} more", table(heads, rows[most:], numbers))
    return tag("div", table(heads, rows[:most], numbers), rest)


def facts(rows: Sequence[tuple[str, Content]]) -> Html:
    """Return names with their values; those that are long come last, on lines of their own."""
    entries: list[tuple[bool, Html]] = []
    for name, value in rows:
        wide = isinstance(value, str) and len(value) > _LONG
        parts = tag("dt", name), tag("dd", value)
        entries.append((wide, tag("div", *parts, class_="wide" if wide else None)))
    return tag("dl", [entry for _, entry in sorted(entries, key=lambda each: each[0])])


def path_of(module: str) -> Html:
    """Return the path of a module, which may break behind its dots."""
    return tag("span", module.replace("/", ".\u200b"), class_="value")


def folded(title: Content, *content: Content, open_: bool = False) -> Html:
    """Return what is shown on demand."""
    return tag("details", tag("summary", title), *content, open=open_)


def by_program(parts: Sequence[tuple[str, str, float, Content]]) -> Html:
    """Return what a section says of each program.

    Of many programs, such as those of a pipeline, only the one that needs most is shown at first.

    Args:
        parts: name of the program, what is said of it in short, how much it needs, and the rest.
    """
    if len(parts) <= _SHOWN:
        return html([[tag("h3", tag("code", name)), rest] for name, _, _, rest in parts])
    most = max(range(len(parts)), key=lambda index: parts[index][2])
    return html(
        [
            folded([tag("h3", tag("code", name)), f": {said}"], rest, open_=index == most)
            for index, (name, said, _, rest) in enumerate(parts)
        ]
    )
