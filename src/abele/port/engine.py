"""Applies every rule to a program."""

from __future__ import annotations

import dataclasses

from abele.port.context import Context
from abele.port.finding import Finding, Verdict, worst
from abele.port.project import Project
from abele.port.rules import BY_TARGET


@dataclasses.dataclass(frozen=True, kw_only=True)
class Port:
    """A program and what it became.

    Attributes:
        before: the text of each file.
        after: the same after all rules.
        findings: what is said of lines, by file and line.
    """

    before: dict[str, str]
    after: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst(list(self.findings))


def port(project: Project, popdist: bool = False, to: str = "poptorch") -> Port:
    """Port a program; nothing is written.

    Args:
        project: the program.
        popdist: whether it is to run in several instances.
        to: what it becomes a program of: ``poptorch``, ``torch`` or ``samba``.
    """
    context = Context(project, popdist)
    for rule in BY_TARGET[to]:
        rule.apply(context)
    order = {source.name: index for index, source in enumerate(project.sources)}
    after = {source.name: context.edits(source).text() for source in project.sources}
    for name, text in after.items():
        compile(text, name, "exec", dont_inherit=True)  # what is written can be read
    findings = sorted(
        set(context.findings), key=lambda each: (order[each.path], each.line, each.code)
    )
    return Port(
        before={source.name: source.text for source in project.sources},
        after=after,
        findings=tuple(findings),
    )
