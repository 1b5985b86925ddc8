"""HTML and SVG for report pages: escaped elements, tables, charts, and conversion to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from html.parser import HTMLParser
from typing import TypeAlias

_EMPTY = frozenset({"meta", "path", "rect", "line", "circle", "br"})


_LONG = 90  # characters
_SHOWN = 3  # programs that a section shows without a click


class Html(str):
    """A string of HTML markup, which is not escaped again."""

    __slots__ = ()


Content: TypeAlias = "Html | str | int | float | Sequence[Content] | None"


def tag(element: str, *content: Content, **attributes: str | float | bool | None) -> Html:
    """Return an HTML element with escaped content.

    Args:
        element: name of the element.
        content: content; plain strings are escaped.
        attributes: attributes by name, ``class_`` for ``class`` and ``_`` for ``-``; None and
            False are omitted, True has no value.
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
    """Concatenate content as HTML markup."""
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
    """Return an HTML section with a title, which links can point to."""
    return tag("section", tag("h2", title), *content, id=name)


def table(
    heads: Sequence[str], rows: Sequence[Sequence[Content]], numbers: Sequence[int] = ()
) -> Html:
    """Return an HTML table that scrolls horizontally if too wide for the page.

    Args:
        heads: column headings; may be empty.
        rows: rows of cells.
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
    """Return an HTML table whose rows after the first few are collapsed.

    Args:
        heads: column headings, as of ``table``.
        rows: rows of cells.
        numbers: columns that are aligned right.
        most: number of rows shown at first, and some more if only few would remain.
    """
    if len(rows) <= most + most // 4:
        return table(heads, rows, numbers)
    rest = folded(f"{len(rows) - most} more", table(heads, rows[most:], numbers))
    return tag("div", table(heads, rows[:most], numbers), rest)


def facts(rows: Sequence[tuple[str, Content]]) -> Html:
    """Return an HTML list of names with values; long values come last, on lines of their own."""
    entries: list[tuple[bool, Html]] = []
    for name, value in rows:
        wide = isinstance(value, str) and len(value) > _LONG
        parts = tag("dt", name), tag("dd", value)
        entries.append((wide, tag("div", *parts, class_="wide" if wide else None)))
    return tag("dl", [entry for _, entry in sorted(entries, key=lambda each: each[0])])


def path_of(module: str) -> Html:
    """Return a module path as HTML that may wrap after its dots."""
    return tag("span", module.replace("/", ".\u200b"), class_="value")


def folded(title: Content, *content: Content, open_: bool = False) -> Html:
    """Return collapsed HTML content that a reader can expand."""
    return tag("details", tag("summary", title), *content, open=open_)


def by_program(parts: Sequence[tuple[str, str, float, Content]]) -> Html:
    """Return a section's HTML content with a heading for each program.

    Of many programs, such as those of a pipeline, all but the most expensive one are collapsed.

    Args:
        parts: name, summary, cost and content of each program.
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


STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2126; --soft: #56616b; --line: #dfe4e8; --card: #f5f7f8;
  --good: #00704f; --bad: #a83a00; --c1: #0072b2; --c2: #5e2079; --c3: #0a9b74; --c4: #b97d00;
  --c5: #707b84; --c6: #9c3300;
  --m1: #86c5ec; --m2: #b279b8; --m3: #eccf80; --m4: #bcc3c9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181c; --ink: #e6eaed; --soft: #a3aeb8; --line: #2f373e; --card: #1c2227;
    --good: #4cc9a0; --bad: #ff9d5c; --c1: #3a8fc7; --c2: #d3b8f5; --c3: #3fd0a4; --c4: #ecc552;
    --c5: #7d8993; --c6: #dd6a33;
    --m1: #8ecbf2; --m2: #b06fb3; --m3: #d9c07c; --m4: #66717a;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
}
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .7rem;
  padding-top: .4rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .5rem 0; max-width: 48rem; }
p.soft, figcaption, .soft { color: var(--soft); }
nav { margin: .8rem 0 0; display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .9rem; }
a { color: var(--c1); }
.lead { font-size: 1.12rem; overflow-wrap: anywhere; }
.lead b.good { color: var(--good); } .lead b.bad { color: var(--bad); }
.trouble { border-left: 4px solid var(--bad); background: var(--card); padding: .6rem .9rem;
  margin: 1rem 0; overflow-x: auto; }
.trouble pre { margin: .3rem 0 0; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .1rem 1.5rem;
  margin: .5rem 0; }
dl > .wide { grid-column: 1 / -1; }
dl > div { padding: .35rem 0; border-bottom: 1px solid var(--line); }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
code, pre { font: .88em/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; } td code { white-space: nowrap; }
.why { min-width: 16rem; max-width: 44rem; } .list { min-width: 22rem; }
.why, .list { overflow-wrap: anywhere; }
td code.value { white-space: normal; }
.value { overflow-wrap: anywhere; } td:has(> .value) { min-width: 9rem; }
pre { overflow: auto; max-height: 34rem; background: var(--card); padding: .8rem; margin: .5rem 0; }
.trouble pre { background: none; padding: 0; white-space: pre-wrap; }
figure { margin: .6rem 0 .3rem; }
svg { display: block; width: 100%; background: var(--card); border-radius: 4px; }
.top, .axis { display: flex; justify-content: space-between; gap: 1rem; color: var(--soft);
  font-size: .82rem; font-variant-numeric: tabular-nums; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: .3rem 0;
  padding: 0; font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px;
  margin-right: .35rem; vertical-align: -1px; }
.c1 { fill: var(--c1); background: var(--c1); } .c2 { fill: var(--c2); background: var(--c2); }
.c3 { fill: var(--c3); background: var(--c3); } .c4 { fill: var(--c4); background: var(--c4); }
.c5 { fill: var(--c5); background: var(--c5); } .c6 { fill: var(--c6); background: var(--c6); }
.m1 { fill: var(--m1); background: var(--m1); } .m2 { fill: var(--m2); background: var(--m2); }
.m3 { fill: var(--m3); background: var(--m3); } .m4 { fill: var(--m4); background: var(--m4); }
rect:hover { opacity: .8; }
path.line { fill: none; stroke: var(--c1); stroke-width: 2; vector-effect: non-scaling-stroke; }
.axis span:last-child { white-space: nowrap; }
details { margin: .3rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
summary h3 { display: inline; }
details details { margin-left: 1.1rem; }
.worse { color: var(--bad); }
@media print { main { max-width: none; } section { break-inside: avoid; } }
@media (max-width: 40rem) {
  main { padding: 1rem .8rem 3rem; } h1 { font-size: 1.4rem; }
  .at, #memory td { white-space: nowrap; } .why { min-width: 10rem; } .list { min-width: 14rem; }
  #runs td:has(> .value) { min-width: 4.2rem; } }
"""


#: Elements without words of their own: pictures, links inside the page, its title and style.
_SILENT = frozenset({"head", "svg", "nav"})
_LINES = frozenset({"h1", "h2", "h3", "p", "tr", "summary", "pre", "li"})
_CELLS = frozenset({"td", "th", "dd"})
#: Sections that a terminal has no room for: programs after all passes.
_OMITTED = frozenset({"programs"})


def as_text(page: str) -> str:
    """Convert an HTML page to text, a line for each paragraph and each row of a table.

    Args:
        page: result of ``page`` or ``comparison.page``.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.text()


class _Reader(HTMLParser):
    """HTML parser that converts a page to lines of plain text."""

    def __init__(self):
        super().__init__()
        self._lines: list[str] = []
        self._line: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a line or a cell of text, or skip an HTML element."""
        if tag in _SILENT or (tag == "section" and dict(attrs).get("id") in _OMITTED):
            self._silent.append(tag)
        elif tag in _LINES or tag == "div":
            self._end_line()
            if tag in ("h2", "h3"):
                self._lines.append("")
        elif tag in _CELLS:
            self._line.append("  ")

    def handle_endtag(self, tag: str) -> None:
        """End a line of text, or a skipped HTML element."""
        if self._silent and tag == self._silent[-1]:
            self._silent.pop()
        elif tag in _LINES or tag == "div":
            self._end_line()

    def handle_data(self, data: str) -> None:
        """Append text of the HTML page to the line."""
        if not self._silent:
            self._line.append(data.replace("\u200b", ""))

    def text(self) -> str:
        """Return all lines of the page as plain text."""
        self._end_line()
        return "\n".join(self._lines).strip() + "\n"

    def _end_line(self) -> None:
        text, self._line = "".join(self._line).strip(), []
        if text:
            self._lines.append(text)


WIDTH, HEIGHT = 1000.0, 240.0


def frame(
    shapes: Content, *, top: str, left: str, right: str, title: str, height: int = 14
) -> Html:
    """Return an SVG chart with axis labels.

    Args:
        shapes: SVG shapes in a box of ``WIDTH`` times ``HEIGHT``, y down.
        top: label of the upper edge.
        left: label of the left end of the horizontal axis.
        right: label of the right end.
        title: description for screen readers.
        height: height in rem.
    """
    picture = tag(
        "svg",
        shapes,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
        style=f"height:{height}rem",
    )
    below = tag("div", tag("span", left), tag("span", right), class_="axis")
    return tag("figure", tag("div", top, class_="top"), picture, below)


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """Return a chart's legend as HTML, from pairs of CSS class and label."""
    items = [tag("li", tag("i", class_=name), words) for name, words in entries]
    return tag("ul", items, class_="legend")


def stacked(
    bands: Sequence[tuple[str, str, float]],
    begins: Sequence[float],
    kinds: Sequence[tuple[str, Sequence[float]]],
    top: float,
) -> Html:
    """Return SVG shapes of a chart: constant levels with stacked areas on top.

    Args:
        bands: CSS class, label and height of each level, from the bottom.
        begins: x of each step from 0 to ``WIDTH``.
        kinds: CSS class of each area, from the bottom, and its own height at each step.
        top: value at ``HEIGHT``.
    """
    scale = HEIGHT / top if top else 0.0
    shapes: list[Html] = []
    level = 0.0
    for name, words, height in bands:
        y = HEIGHT - (level + height) * scale
        box = {"x": "0", "y": _n(y), "width": _n(WIDTH), "height": _n(height * scale)}
        shapes.append(tag("rect", tag("title", words), class_=name, **box))
        level += height
    below = [level] * len(begins)
    for name, heights in kinds if begins else ():
        above = [a + b for a, b in zip(below, heights, strict=True)]
        shapes.append(tag("path", d=_band(begins, below, above, scale), class_=name))
        below = above
    return tag("g", shapes)


def _band(
    begins: Sequence[float], below: Sequence[float], above: Sequence[float], scale: float
) -> str:
    """Return the SVG path of the area between two step curves."""
    path = [f"M{_n(begins[0])},{_n(HEIGHT - below[0] * scale)}"]
    for end, height in zip([*begins[1:], WIDTH], above, strict=True):
        path.append(f"V{_n(HEIGHT - height * scale)}H{_n(end)}")
    for begin, height in zip(reversed(begins), reversed(below), strict=True):
        path.append(f"V{_n(HEIGHT - height * scale)}H{_n(begin)}")
    return "".join([*path, "Z"])


def line(points: Sequence[tuple[float, float]], style: str | None = None) -> Html:
    """Return an SVG line through points in the chart's coordinates; a style for other pages."""
    path = "L".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return tag("path", d=f"M{path}", class_=None if style else "line", style=style)


def height_of(low: float, high: float) -> Callable[[float], float]:
    """Return a function from a value to its y coordinate in a chart."""
    span = (high - low) or 1.0
    return lambda value: HEIGHT - (value - low) / span * HEIGHT


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
