"""Applies every rule to a program."""

from __future__ import annotations

import dataclasses

from abele.port.context import Context
from abele.port.finding import Finding, Verdict, worst
from abele.port.project import Project
from abele.port.readable import compiled
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

    @property
    def unfinished(self) -> tuple[Finding, ...]:
        """What is left to do by hand, or blocks the port."""
        return tuple(
            each for each in self.findings if each.verdict in (Verdict.MANUAL, Verdict.BLOCKED)
        )


def port(project: Project, popdist: bool = False, to: str = "poptorch") -> Port:
    """Port a program; nothing is written.

    Args:
        project: the program.
        popdist: whether it is to run in several instances.
        to: what it becomes a program of: ``poptorch`` or ``torch``.
    """
    context = Context(project, popdist)
    for rule in BY_TARGET[to]:
        rule.apply(context)
        if context.finished:
            break
    order = {source.name: index for index, source in enumerate(project.sources)}
    after: dict[str, str] = {}
    for _ in range(2):  # what a branch asks for may have to be passed through other files first
        after = {each.name: context.edits(each).text() for each in context.project.sources}
    for name, text in after.items():
        compiled(name, text)  # what is written can be read
    findings = sorted(
        set(context.findings),
        key=lambda each: (order[each.path], each.line, each.code, each.column, each.reason),
    )
    return Port(before=_texts(project), after=after, findings=tuple(findings))


def _texts(project: Project) -> dict[str, str]:
    return {source.name: source.text for source in project.sources}
