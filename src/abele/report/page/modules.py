"""Tree of a model's modules with their costs."""

from __future__ import annotations

import dataclasses

from abele.report import record, words
from abele.report.page.markup import Html, folded, html, section, tag

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


def modules(run: record.Run) -> Html | None:
    """Return a section with the tree of modules; None if all operations are outside of modules."""
    root = tree_of(run.programs)
    if not root.parts.keys() - {_OUTSIDE}:
        return None
    names = sorted(root.parts, key=lambda name: name == _OUTSIDE)  # it comes last
    of_time = "the time in kernels, and of " if root.seconds else ""
    note = tag("p", f"Each has its share of {of_time}all bytes that operators move.", class_="soft")
    tree = tag("div", [_node(name, root.parts[name], root) for name in names], class_="tree")
    return section("Modules", note, tree, name="modules")


def _node(name: str, part: Part, root: Part) -> Html:
    work = f", {words.large(part.operations)}FLOP" if part.operations else ""
    took = ""
    if root.seconds:
        took = f" {words.share(part.seconds, root.seconds)}, {words.seconds(part.seconds)};"
    said = html(
        tag("b", name),
        f"{took} {words.share(part.bytes, root.bytes)}, {words.size(part.bytes)}{work}, "
        f"{words.count(part.count, 'operation')}",
    )
    inside = [_node(each, below, root) for each, below in part.parts.items()]
    leaves = [_leaf(label, count) for label, count in part.by_operator.items()]
    return folded(said, inside, leaves)


def _leaf(label: str, count: int) -> Html:
    return tag("div", tag("code", label), f" x {count}" if count > 1 else "", class_="leaf")
