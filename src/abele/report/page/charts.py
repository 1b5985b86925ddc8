"""Pictures as inline SVG: shapes stretch with the page, words beside them do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from abele.report.page.markup import Content, Html, tag

WIDTH, HEIGHT = 1000.0, 240.0

#: A point: where it is, how much, and what is said of it at the pointer.
Point = tuple[float, float, str]


def frame(
    shapes: Content, *, top: str, left: str, right: str, title: str, height: int = 14
) -> Html:
    """Return shapes with the words around them.

    Args:
        shapes: in a box of ``WIDTH`` times ``HEIGHT``, y down.
        top: what the upper edge means.
        left: where the horizontal axis begins.
        right: where it ends.
        title: what is seen, for those who cannot.
        height: of the picture, in rem.
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
    """Return what the colours mean: class and words."""
    items = [tag("li", tag("i", class_=name), words) for name, words in entries]
    return tag("ul", items, class_="legend")


def stacked(
    bands: Sequence[tuple[str, str, float]],
    points: Sequence[Point],
    kinds: Sequence[tuple[str, Sequence[float]]],
    top: float,
) -> Html:
    """Return levels that never change, and curves of steps on top of them.

    Args:
        bands: class, words and height of each level, from the bottom.
        points: x from 0 to ``WIDTH``, the height of all curves there, and words.
        kinds: class of each curve, from the bottom, and its own height at each point.
        top: what ``HEIGHT`` stands for.
    """
    scale = HEIGHT / top if top else 0.0
    shapes: list[Html] = []
    level = 0.0
    for name, words, height in bands:
        y = HEIGHT - (level + height) * scale
        box = {"x": "0", "y": _n(y), "width": _n(WIDTH), "height": _n(height * scale)}
        shapes.append(tag("rect", tag("title", words), class_=name, **box))
        level += height
    if not points:
        return tag("g", shapes)
    ends = [*(x for x, _, _ in points[1:]), WIDTH]
    below = [level] * len(points)
    for name, heights in kinds:
        above = [a + b for a, b in zip(below, heights, strict=True)]
        path = _band(points, ends, below, above, scale)
        shapes.append(tag("path", d=path, class_=name))
        below = above
    return tag("g", shapes, _hover(points, ends))


def _band(
    points: Sequence[Point],
    ends: Sequence[float],
    below: Sequence[float],
    above: Sequence[float],
    scale: float,
) -> str:
    """Return the outline of the area between two curves."""
    path = [f"M{_n(points[0][0])},{_n(HEIGHT - below[0] * scale)}"]
    for end, height in zip(ends, above, strict=True):
        path.append(f"V{_n(HEIGHT - height * scale)}H{_n(end)}")
    for (begin, _, _), height in zip(reversed(points), reversed(below), strict=True):
        path.append(f"V{_n(HEIGHT - height * scale)}H{_n(begin)}")
    return "".join([*path, "Z"])


def _hover(points: Sequence[Point], ends: Sequence[float]) -> list[Html]:
    """Boxes that say what is there, at the pointer."""
    return [
        tag(
            "rect",
            tag("title", words),
            class_="hover",
            x=_n(x),
            y="0",
            width=_n(end - x),
            height=_n(HEIGHT),
        )
        for (x, _, words), end in zip(points, ends, strict=True)
    ]


def line(points: Sequence[tuple[float, float]], name: str = "line") -> Html:
    """Return a line through points in the box of the picture."""
    path = "L".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return tag("path", d=f"M{path}", class_=name)


def area(lower: Sequence[tuple[float, float]], upper: Sequence[tuple[float, float]]) -> Html:
    """Return what lies between two lines."""
    path = "L".join(f"{_n(x)},{_n(y)}" for x, y in [*lower, *reversed(upper)])
    return tag("path", d=f"M{path}Z", class_="range")


def height_of(low: float, high: float) -> Callable[[float], float]:
    """Return the function from a value to its y in the picture."""
    span = (high - low) or 1.0
    return lambda value: HEIGHT - (value - low) / span * HEIGHT


def part(length: float, name: str = "", *, begin: float = 0.0) -> Html:
    """Return a bar in a table: ``length`` from 0 to 1, and where it begins."""
    start = f";--begin:{100 * begin:.1f}%" if begin else ""
    style = f"--length:{100 * length:.1f}%{start}"
    return tag("span", class_=f"bar {name}".strip(), style=style)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
