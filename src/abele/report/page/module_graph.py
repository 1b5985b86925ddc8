"""The graph of a module: its parts as boxes, and the values of forward that pass between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from abele.report import words
from abele.report.flow import OUTSIDE, Passage, Read, Step, steps_of
from abele.report.layout import Layout, layered
from abele.report.page.markup import Content, Html, tag

#: A module with more steps has no graph: nobody could read it.
MOST = 80
_HIGH, _LAYER = 40.0, 68.0
_LETTER, _PAD, _LONGEST = 7.4, 12.0, 24  # pixels, pixels, characters
_MOST_VALUES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Box:
    """A box of the drawing: name, line below it, tooltip, and link."""

    name: str
    below: str = ""
    title: str = ""
    link: str = ""
    kind: str = "box"

    @property
    def width(self) -> float:
        return 2 * _PAD + _LETTER * max(map(len, (_short(self.name), _short(self.below), "....")))

    def drawn(self, center: float, layer: int) -> Html:
        x, y = center - self.width / 2, layer * _LAYER
        middle = y + _HIGH / 2
        lines = [(self.name, middle - 3)] if self.below else [(self.name, middle + 4.5)]
        lines += [(self.below, middle + 12)] if self.below else []
        text = [
            tag("text", _short(said), x=_n(center), y=_n(at), class_="soft" if i else None)
            for i, (said, at) in enumerate(lines)
        ]
        size = {"width": _n(self.width), "height": _n(_HIGH)}
        shape = tag("rect", x=_n(x), y=_n(y), rx=5, class_=self.kind, **size)
        title = tag("title", self.title) if self.title else None
        content = tag("g", title, shape, text)
        return tag("a", content, href=f"#{self.link}") if self.link else content


def anchor(module: str) -> str:
    """Return what links to a module point to."""
    return f"module:{quote(module, errors='backslashreplace')}"


def graph(
    passages: Sequence[Passage], module: str, said: Mapping[str, str], inputs: str = "inputs"
) -> Html | None:
    """Return the graph of a module; None where it has only one step.

    Args:
        passages: of forward.
        module: its path; empty for the whole model.
        said: what a box says below the name of a part, by that name.
        inputs: what comes from outside, in words.
    """
    steps = steps_of(passages, module)
    if len(steps) < 2:
        return None
    if len(steps) > MOST:
        text = f"Forward has {len(steps)} steps here, too many to be drawn."
        return tag("p", text, class_="soft")
    boxes = [_Box(name=inputs, kind="edge-of")]
    boxes += [_box(step, module, said) for step in steps]
    if any(step.leaves for step in steps):
        boxes.append(_Box(name="outputs", kind="edge-of"))
    edges = _edges(steps, len(boxes) - 1)
    layout = layered([box.width for box in boxes], list(edges))
    lines = [_line(layout, edge, boxes, values) for edge, values in edges.items()]
    shown = {end for edge in edges for end in edge} | set(range(1, len(boxes)))
    drawn = [boxes[i].drawn(layout.centers[i], layout.layer[i]) for i in sorted(shown)]
    return _picture(layout, [lines, drawn], f"{len(steps)} steps of {module or 'the model'}")


def _box(step: Step, module: str, said: Mapping[str, str]) -> _Box:
    names = [name.split(".")[1] if "." in name else name for name in step.operators]
    title = f"{step.name or 'operations of the module itself'}: " + ", ".join(step.operators)
    if step.name:
        path = f"{module}/{step.name}" if module else step.name
        return _Box(
            name=step.name.replace("/", "."),
            below=said.get(step.name, ""),
            title=title,
            link=anchor(path),
        )
    name = ", ".join(names[:2]) + (" ..." if len(names) > 2 else "")
    return _Box(name=name, below=words.count(step.count, "operation"), title=title, kind="loose")


def _edges(steps: Sequence[Step], last: int) -> dict[tuple[int, int], list[Read]]:
    """Values by the boxes between which they pass; the first box is what comes from outside."""
    edges: dict[tuple[int, int], list[Read]] = {}
    for index, step in enumerate(steps):
        for begin, values in step.reads.items():
            edges[0 if begin == OUTSIDE else begin + 1, index + 1] = values
        if step.leaves:
            edges[index + 1, last] = []
    return edges


def _line(
    layout: Layout, edge: tuple[int, int], boxes: Sequence[_Box], values: Sequence[Read]
) -> Html:
    """Draw a curve from the lower edge of a box to the upper edge of another one."""
    begin, end = edge
    y, last = layout.layer[begin] * _LAYER + _HIGH, layout.layer[end] * _LAYER
    x = layout.centers[begin]
    path = [f"M{_n(x)},{_n(y)}"]
    for center, layer in zip(
        (*layout.ways[edge], layout.centers[end]),
        range(layout.layer[begin] + 1, layout.layer[end] + 1),
        strict=True,
    ):
        top = layer * _LAYER
        bend = (top - y) / 2
        path.append(f"C{_n(x)},{_n(y + bend)} {_n(center)},{_n(top - bend)} {_n(center)},{_n(top)}")
        if top != last:  # past the boxes of this layer
            path.append(f"V{_n(top + _HIGH)}")
        x, y = center, top + _HIGH
    said = f"{boxes[begin].name} to {boxes[end].name}"
    if values:
        types = [f"{each.type} ({words.size(each.bytes)})" for each in values[:_MOST_VALUES]]
        more = len(values) - len(types)
        said += ": " + ", ".join(types) + (f" and {more} more" if more else "")
    return tag("path", tag("title", said), d="".join(path), class_="edge")


def _picture(layout: Layout, content: Content, said: str) -> Html:
    width, height = layout.width + 4, (layout.layers - 1) * _LAYER + _HIGH + 4
    picture = tag(
        "svg",
        tag("g", content, transform="translate(2 2)"),
        class_="graph",
        width=_n(width),
        height=_n(height),
        viewBox=f"0 0 {_n(width)} {_n(height)}",
        role="img",
        aria_label=f"Values that pass between {said}",
    )
    return tag("div", picture, class_="scroll", tabindex=0)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
