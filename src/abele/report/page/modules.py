"""The modules of a model: how values pass between them, and what each costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from abele.report import record, words
from abele.report.flow import Passage
from abele.report.page.markup import Content, Html, folded, html, section, tag
from abele.report.page.module_graph import anchor, graph

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
