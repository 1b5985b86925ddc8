"""Graphs of modules, drawn in layers, and a tree of modules with their costs."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from abele.report import record, words
from abele.report.flow import OUTSIDE, Passage, Read, Step, steps_of
from abele.report.page.markup import Content, Html, folded, html, section, tag

_SWEEPS = 6
_BEND = 18.0  # what an edge takes where it passes a layer
_GAP = 22.0


@dataclasses.dataclass(frozen=True)
class Layout:
    """Coordinates of a drawn graph.

    Attributes:
        width: width of the drawing.
        layers: number of layers.
        centers: center of each node, from the left.
        layer: layer of each node, from 0.
        ways: for each edge, its centers in the layers between its endpoints.
    """

    width: float
    layers: int
    centers: tuple[float, ...]
    layer: tuple[int, ...]
    ways: dict[tuple[int, int], tuple[float, ...]]


def layered(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return where nodes are drawn.

    Args:
        widths: of the nodes.
        edges: from and to; a node only leads to later ones.
    """
    layer = [0] * len(widths)
    for begin, end in sorted(edges, key=lambda each: each[1]):
        layer[end] = max(layer[end], layer[begin] + 1)
    points = list(widths)
    rows: dict[int, list[int]] = defaultdict(list)
    for node, row in enumerate(layer):
        rows[row].append(node)
    links: list[tuple[int, int]] = []
    chains: dict[tuple[int, int], list[int]] = {}
    for begin, end in edges:
        bends: list[int] = []
        for row in range(layer[begin] + 1, layer[end]):
            bends.append(len(points))
            rows[row].append(len(points))
            points.append(_BEND)
        chains[begin, end] = bends
        way = [begin, *bends, end]
        links += itertools.pairwise(way)
    ordered = _ordered([rows[row] for row in sorted(rows)], links)
    at = _centers(ordered, points, links, len(widths))
    left = min((at[i] - points[i] / 2 for i in at), default=0.0)
    return Layout(
        width=max((at[i] + points[i] / 2 for i in at), default=0.0) - left,
        layers=len(ordered),
        centers=tuple(at[i] - left for i in range(len(widths))),
        layer=tuple(layer),
        ways={edge: tuple(at[i] - left for i in bends) for edge, bends in chains.items()},
    )


def _neighbours(links: Sequence[tuple[int, int]]) -> tuple[dict[int, list[int]], ...]:
    """Return the neighbours of each point above and below."""
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for begin, end in links:
        above[end].append(begin)
        below[begin].append(end)
    return above, below


def _ordered(rows: list[list[int]], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Rows in an order in which points are near the middle of their neighbours, down and up."""
    above, below = _neighbours(links)
    place = {point: float(i) for row in rows for i, point in enumerate(row)}
    for sweep in range(_SWEEPS):
        others, listed = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in listed:
            middle = {point: _mean(place, others.get(point, ()), place[point]) for point in row}
            row.sort(key=middle.__getitem__)
            place.update((point, float(i)) for i, point in enumerate(row))
    return rows


def _mean(at: Mapping[int, float], points: Sequence[int], otherwise: float) -> float:
    return sum(at[each] for each in points) / len(points) if points else otherwise


def _centers(
    rows: Sequence[Sequence[int]],
    widths: Sequence[float],
    links: Sequence[tuple[int, int]],
    nodes: int,
) -> dict[int, float]:
    """Centers near the middle of neighbours, in order and without overlaps.

    Nodes come first, so that rows of them are straight; edges bend beside them.
    """
    above, below = _neighbours(links)
    near = {p: [*above.get(p, ()), *below.get(p, ())] for row in rows for p in row}
    at = dict.fromkeys(near, 0.0)
    for points, among in ((nodes, range(nodes)), (len(widths), range(nodes, len(widths)))):
        others = {p: [o for o in near[p] if o < points] for p in near}
        for sweep in range(2 * _SWEEPS):
            for row in rows if sweep % 2 == 0 else rows[::-1]:
                wanted = {p: _mean(at, others[p], at[p]) for p in row}
                at.update(_row(row, wanted, at, widths, among))
    return at


def _row(
    row: Sequence[int],
    wanted: Mapping[int, float],
    at: Mapping[int, float],
    widths: Sequence[float],
    among: range,
) -> dict[int, float]:
    """Centers of some points of a row, close to what is wanted, far enough from all others.

    The mean of two ways, from the left and from the right; points that came before stay.
    """
    offset, offsets = 0.0, [0.0]
    for left, right in itertools.pairwise(row):
        offset += (widths[left] + widths[right]) / 2 + _GAP
        offsets.append(offset)
    placed = [p if p in among else None for p in row]
    fixed = [at[p] - offsets[i] if p < among.start else None for i, p in enumerate(row)]
    aim = [wanted[p] - offsets[i] for i, p in enumerate(row)]
    # Where neighbours touch, they have the same place here.
    right = _rising(aim, placed, fixed, max)
    left = _rising(aim[::-1], placed[::-1], fixed[::-1], min)[::-1]
    return {
        p: (a + b) / 2 + offsets[i]
        for i, (p, a, b) in enumerate(zip(row, right, left, strict=True))
        if p in among
    }


def _rising(
    aim: Sequence[float],
    placed: Sequence[int | None],
    fixed: Sequence[float | None],
    further: Callable[[float, float], float],
) -> list[float]:
    """Places along a row that never go back; ``further`` is ``max``, or ``min`` from its end."""
    nearer = min if further is max else max
    places: list[float] = []
    last: float | None = None
    for i, wanted in enumerate(aim):
        stays = fixed[i]
        if stays is not None:
            last = stays
        elif placed[i] is not None:
            last = wanted if last is None else further(wanted, last)
            ahead = next((each for each in fixed[i:] if each is not None), None)
            last = last if ahead is None else nearer(last, ahead)
        places.append(wanted if last is None else last)
    return places


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


# What belongs to no module, with a name that no module can have.
_OUTSIDE = "outside of all modules"


@dataclasses.dataclass
class Part:
    """A module with what is inside it.

    Attributes:
        count: operations in it and below.
        operations: floating-point operations.
        bytes: that they move.
        seconds: of kernels, if they were timed.
        parts: modules inside.
        by_operator: uses of each operator in the module itself.
    """

    count: int = 0
    operations: int = 0
    bytes: int = 0
    seconds: float = 0.0
    parts: dict[str, Part] = dataclasses.field(default_factory=dict[str, "Part"])
    by_operator: dict[str, int] = dataclasses.field(default_factory=dict[str, int])


def tree_of(programs: tuple[record.Program, ...]) -> Part:
    """Return the tree of the modules of all programs."""
    root = Part()
    for each in (operator for program in programs for operator in program.operators):
        path = _path(each.module)
        part = root
        for name in [*path, None]:
            part.count += each.count
            part.operations += each.operations
            part.bytes += each.bytes
            if name is None:
                label = f"{each.phase} {each.name}"
                part.by_operator[label] = part.by_operator.get(label, 0) + each.count
            else:
                part = part.parts.setdefault(name, Part())
    for program in programs:
        for kernel in program.timing.kernels if program.timing is not None else ():
            part = root
            for name in [*_path(kernel.module), None]:
                part.seconds += kernel.seconds
                if name is not None:
                    part = part.parts.setdefault(name, Part())
    return root


def _path(module: str) -> list[str]:
    return [name for name in module.split("/") if name] or [_OUTSIDE]


def passages_of(programs: Sequence[record.Program]) -> tuple[list[Passage], str]:
    """Forward of all programs, one after the other; of programs with the same modules, one.

    Also what their inputs are, in words.
    """
    row: list[Passage] = []
    count = 0
    drawn: set[str] = set()
    for program in programs:
        names = {each.module for each in program.passages if each.module}
        if names & drawn or not program.passages:
            continue
        drawn |= names
        count += 1
        begin = len(row)
        for each in program.passages:
            reads = [
                dataclasses.replace(read, passage=read.passage + begin)
                if read.passage >= 0
                else read
                for read in each.reads
            ]
            row.append(dataclasses.replace(each, reads=tuple(reads)))
    return row, "the batch" if count < 2 else "batch, other stages"


def modules(run: record.Run) -> Html | None:
    """Return the graph of the model, and a tree of its modules."""
    root = tree_of(run.programs)
    if not root.parts.keys() - {_OUTSIDE}:
        return None
    passages, inputs = passages_of(run.programs)
    names = sorted(root.parts, key=lambda name: name == _OUTSIDE)  # it comes last
    children = [_node(name, name, root.parts[name], root, passages) for name in names]
    of_time = "the time in kernels, and of " if root.seconds else ""
    drawn = _drawn(passages, "", root, root, inputs)
    graphs = (
        "The graph shows how values of forward pass between them, and leads to each; one that is "
        "called several times is there as often, each time with all that it costs. "
        if drawn is not None
        else ""
    )
    text = f"{graphs}Each has its share of {of_time}all bytes that operators move."
    note = tag("p", text, class_="soft")
    return section("Modules", note, drawn, tag("div", children, class_="tree"), name="modules")


def _drawn(
    passages: Sequence[Passage], module: str, part: Part, root: Part, inputs: str = "inputs"
) -> Html | None:
    """Draw the graph of a module, with costs in the boxes."""
    said = {name: _cost(below, root) for name, below in part.parts.items()}
    for name, below in part.parts.items():  # lists of modules have none of their own
        said |= {f"{name}/{each}": _cost(inner, root) for each, inner in below.parts.items()}
    return graph(passages, module, said, inputs)


def _cost(part: Part, root: Part) -> str:
    if root.seconds:
        return f"{words.share(part.seconds, root.seconds)}, {words.seconds(part.seconds)}"
    return f"{words.share(part.bytes, root.bytes)}, {words.size(part.bytes)}"


def _node(name: str, path: str, part: Part, root: Part, passages: Sequence[Passage]) -> Html:
    work = f", {words.large(part.operations)}FLOP" if part.operations else ""
    took = ""
    if root.seconds:
        took = f" {words.share(part.seconds, root.seconds)}, {words.seconds(part.seconds)};"
    said = html(
        tag("b", name),
        f"{took} {words.share(part.bytes, root.bytes)}, {words.size(part.bytes)}{work}, "
        f"{words.count(part.count, 'operation')}",
    )
    inside: list[Content] = [
        _node(each, f"{path}/{each}", below, root, passages) for each, below in part.parts.items()
    ]
    leaves = [_leaf(label, count) for label, count in part.by_operator.items()]
    if name == _OUTSIDE:
        return folded(said, leaves)
    # Links lead to what is inside, so that browsers open it.
    content = tag("div", _drawn(passages, path, part, root), inside, leaves, id=anchor(path))
    return folded(said, content)


def _leaf(label: str, count: int) -> Html:
    return tag("div", tag("code", label), f" x {count}" if count > 1 else "", class_="leaf")
