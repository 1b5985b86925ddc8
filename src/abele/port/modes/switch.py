"""Finds the enumeration of compute modes, and the branches that the new mode takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.project import Project
from abele.port.source import Source

#: The mode that is added.
NEW = "IPU"
_OTHERS = frozenset(("cuda", "dpcpp", "gpu", "hpu", "mps", "rdu", "rocm", "tpu", "xla", "xpu"))
_EQUAL = (cst.Equal, cst.Is)
_UNEQUAL = (cst.NotEqual, cst.IsNot)


@dataclasses.dataclass(frozen=True, eq=False)
class Switch:
    """An enumeration of compute modes.

    The new mode goes the way of CPU wherever the program asks: outside of programs it computes on
    the host.

    Attributes:
        project: the files.
        source: the file of the enumeration.
        cls: its class.
        like: the name of its member for CPU.
        new: the name of the new member, in the same letters.
        there: whether it has the new member already.
    """

    project: Project
    source: Source
    cls: cst.ClassDef
    like: str
    new: str
    there: bool

    def member(self, source: Source, node: cst.BaseExpression) -> str:
        """The member that an expression stands for; ``""`` if none."""
        if not isinstance(node, cst.Attribute):
            return ""
        return node.attr.value if self.project.class_of(source, node.value) is self.cls else ""

    def decided(self, source: Source, test: cst.BaseExpression) -> bool | None:
        """Whether a condition is true in the new mode; None if that depends on more."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self.decided(source, test.expression)
            return None if inner is None else not inner
        if isinstance(test, cst.BooleanOperation):
            sides = self.decided(source, test.left), self.decided(source, test.right)
            stops = isinstance(test.operator, cst.Or)
            if stops in sides:
                return stops
            return None if None in sides else not stops
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            return self._compared(source, test.left, test.comparisons[0])
        return None

    def _compared(
        self, source: Source, left: cst.BaseExpression, target: cst.ComparisonTarget
    ) -> bool | None:
        right, operator = target.comparator, target.operator
        if isinstance(operator, cst.In | cst.NotIn):
            names = self._listed(source, right)
            return None if names is None else (self.like in names) is isinstance(operator, cst.In)
        names = [name for name in (self.member(source, each) for each in (left, right)) if name]
        if len(names) != 1 or not isinstance(operator, (*_EQUAL, *_UNEQUAL)):
            return None
        return (names[0] == self.like) is isinstance(operator, _EQUAL)

    def _listed(self, source: Source, node: cst.BaseExpression) -> list[str] | None:
        """The members in a tuple, list or set; None if it is none of members."""
        if not isinstance(node, cst.Tuple | cst.List | cst.Set):
            return None
        names = [self.member(source, each.value) for each in node.elements]
        return names if names and all(names) else None

    def mode_expressions(self, source: Source) -> Iterator[cst.BaseExpression]:
        """The expressions of a file that are compared with members: the mode of a run."""
        for node in findall(source.module, m.Comparison()):
            assert isinstance(node, cst.Comparison)
            sides = [node.left, *(each.comparator for each in node.comparisons)]
            if any(self.member(source, each) or self._listed(source, each) for each in sides):
                for each in sides:
                    plain = isinstance(each, cst.Name | cst.Attribute)
                    if plain and not self.member(source, each):
                        yield each

    def names(self, source: Source) -> list[str]:
        """How a file calls the enumeration, the most frequent name first."""
        codes = [
            source.code(node.value)
            for node in findall(source.module, m.Attribute())
            if isinstance(node, cst.Attribute) and self.member(source, node)
        ]
        if source is self.source:
            codes.append(self.cls.name.value)
        return sorted(dict.fromkeys(codes), key=codes.count, reverse=True)


def members(cls: cst.ClassDef) -> dict[str, cst.BaseExpression]:
    """The members of an enumeration and their values."""
    pattern = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name())])])
    assigns = [
        cst.ensure_type(statement.body[0], cst.Assign)
        for statement in cls.body.body
        if isinstance(statement, cst.SimpleStatementLine) and m.matches(statement, pattern)
    ]
    return {cst.ensure_type(each.targets[0].target, cst.Name).value: each.value for each in assigns}


def switch_of(project: Project) -> Switch | None:
    """The switch of a program; None if it has none that any condition asks."""
    for source in project.sources:
        for cls in findall(source.module, m.ClassDef()):
            assert isinstance(cls, cst.ClassDef)
            bases = [source.imported(each.value) for each in cls.bases]
            if not any(each.startswith("enum.") for each in bases):
                continue
            by_lower = {name.lower(): name for name in members(cls)}
            if "cpu" in by_lower and _OTHERS & by_lower.keys():
                like = by_lower["cpu"]
                new = NEW if like.isupper() else NEW.lower() if like.islower() else NEW.title()
                there = new in by_lower.values()
                switch = Switch(project, source, cls, like, new, there)
                if any(True for each in project.sources for _ in switch.mode_expressions(each)):
                    return switch
    return None
