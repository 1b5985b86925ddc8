"""What the programs do: operators by their cost, and modules as a tree."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict

from abele.report import record, words
from abele.report.page import charts
from abele.report.page.markup import Content, Html, folded, html, long_table, section, tag

_MOST = 30
# What belongs to no module, with a name that no module can have.
_OUTSIDE = "outside of all modules"


def operators(run: record.Run) -> Html:
    """A table of each program's operators, those that move most bytes first."""
    parts: list[Content] = []
    for program in run.programs:
        total = sum(each.count for each in program.operators)
        head = (tag("code", program.name), f": {words.count(total, 'operation')}")
        parts += [tag("h3", *head), _table(program)]
    note = (
        "Operations are those of convolutions, matrix products and attention. Bytes are of the "
        "tensors that an operator reads and makes, the least that it could move if nothing were "
        "joined; views move none. The next section has the reasons for who computes each."
    )
    return section("What operators need", tag("p", note, class_="soft"), parts, name="operators")


def _table(program: record.Program) -> Html:
    chosen: dict[tuple[str, str], list[record.Choice]] = defaultdict(list)
    for choice in program.choices:
        chosen[choice.phase, choice.operator].append(choice)
    rows: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in program.operators:
        entry = rows[each.phase, each.name]
        for index, value in enumerate((each.count, each.operations, each.bytes)):
            entry[index] += value
    ordered = sorted(rows.items(), key=lambda item: (-item[1][2], -item[1][1], item[0]))
    whole = sum(sums[2] for sums in rows.values())
    top = max((sums[2] for sums in rows.values()), default=0) or 1
    cells: list[list[Content]] = [
        [
            tag("code", name),
            phase,
            f"{count:,}",
            words.size(moved),
            words.share(moved, whole),
            charts.part(moved / top),
            f"{words.large(work)}FLOP" if work else "",
            _who(chosen[phase, name]),
        ]
        for (phase, name), (count, work, moved) in ordered
    ]
    heads = ("operator", "phase", "uses", "bytes", "share", "", "operations", "computed by")
    return long_table(heads, cells, numbers=(2, 3, 4, 6), most=_MOST)


def _who(choices: list[record.Choice]) -> str:
    """Who computes an operator, and how often where that differs."""
    counts: Counter[str] = Counter()
    for each in choices:
        counts[each.by] += each.count
    if len(counts) == 1:
        return next(iter(counts))
    # What belongs together stays on one line.
    return ", ".join(f"{by}\u00a0x\u00a0{count:,}" for by, count in counts.most_common())


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
    """The modules of all programs, the outermost first."""
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
    """The modules as a tree that opens on demand."""
    root = tree_of(run.programs)
    if not root.parts.keys() - {_OUTSIDE}:
        return None
    names = sorted(root.parts, key=lambda name: name == _OUTSIDE)  # it comes last
    children = [_node(name, root.parts[name], root, open_=False) for name in names]
    of_time = "the time in kernels, and of " if root.seconds else ""
    note = tag(
        "p", f"Each with its share of {of_time}all bytes that operators move.", class_="soft"
    )
    return section("Modules", note, tag("div", children, class_="tree"), name="modules")


def _node(name: str, part: Part, root: Part, *, open_: bool) -> Html:
    work = f", {words.large(part.operations)}FLOP" if part.operations else ""
    took = ""
    if root.seconds:
        took = f" {words.share(part.seconds, root.seconds)}, {words.seconds(part.seconds)};"
    said = html(
        tag("b", name),
        f"{took} {words.share(part.bytes, root.bytes)}, {words.size(part.bytes)}{work}, "
        f"{words.count(part.count, 'operation')}",
    )
    inside = [_node(each, below, root, open_=False) for each, below in part.parts.items()]
    leaves = [_leaf(label, count) for label, count in part.by_operator.items()]
    return folded(said, inside, leaves, open_=open_)


def _leaf(label: str, count: int) -> Html:
    return tag("div", tag("code", label), f" x {count}" if count > 1 else "", class_="leaf")
