"""Refuses programs that choose among kinds of machines: a port would lose their other modes."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

CODES = {
    "ABP900": "The program has a compute mode for IPUs already. It stays as it is.",
    "ABP901": (
        "The program chooses among compute modes, and a port would lose the others: a mode for "
        "IPUs and its branches are added by hand."
    ),
}

_OTHERS = frozenset(("cuda", "dpcpp", "gpu", "hpu", "mps", "rdu", "rocm", "tpu", "xla", "xpu"))
_THERE = "the program has the mode {new} already and uses poptorch: it stays as it is"
_BY_HAND = (
    "the program chooses among compute modes, and a port would lose the others: add a member IPU "
    "by hand and a branch for it at each of these lines (docs/porting-cosmictagger.md shows the "
    "edits), or port a copy without the switch"
)


def apply(context: Context) -> None:
    """Refuse a program with a switch of compute modes; one that has a mode for IPUs stays."""
    switch = _switch(context.project)
    if switch is None:
        return
    source, cls, lines = switch
    ipu = next((each for each in _members(cls) if each.lower() == "ipu"), "")
    context.finished = True
    if ipu and any("poptorch" in each.text for each in context.project.sources):
        context.say(source, cls, "ABP900", Verdict.MATCH, _THERE.format(new=ipu))
        return
    for at, node in ((source, cls), *lines):
        context.say(at, node, "ABP901", Verdict.BLOCKED, _BY_HAND)


def _switch(
    project: Project,
) -> tuple[Source, cst.ClassDef, list[tuple[Source, cst.CSTNode]]] | None:
    """Return the enumeration of compute modes, its file and the nodes that compare with it."""
    for source in project.sources:
        for cls in findall(source.module, m.ClassDef()):
            bases = [source.imported(each.value) for each in cls.bases]
            names = {each.lower() for each in _members(cls)}
            if any(each.startswith("enum.") for each in bases) and (
                "cpu" in names and _OTHERS & names
            ):
                lines = [(at, node) for at in project.sources for node in _asked(project, at, cls)]
                if lines:
                    return source, cls, lines
    return None


def _members(cls: cst.ClassDef) -> list[str]:
    """Return the names of an enumeration's members."""
    target = m.SaveMatchedNode(m.Name(), "name")
    pattern = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target)])])
    found = [m.extract(statement, pattern) for statement in cls.body.body]
    return [cst.ensure_type(each["name"], cst.Name).value for each in found if each]


def _asked(project: Project, source: Source, cls: cst.ClassDef) -> Iterator[cst.CSTNode]:
    """Yield comparisons, cases and dictionaries of a file that name a member of an enumeration."""
    for node in findall(source.module, m.Attribute()):
        if project.class_of(source, node.value) is cls:
            around = source.enclosing(node, cst.Comparison, cst.MatchCase, cst.Dict)
            if around is not None:
                yield around
