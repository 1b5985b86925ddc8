"""Applies every rule to a program."""

from __future__ import annotations

import collections
import dataclasses

from abele.port.context import Context
from abele.port.finding import SENTENCES, Finding, Verdict, worst
from abele.port.project import Project
from abele.port.rules import BY_TARGET
from abele.port.source import require_python


@dataclasses.dataclass(frozen=True, kw_only=True)
class Port:
    """A program and the ported program.

    Attributes:
        before: the text of each file.
        after: the same after all rules, with the files that rules have added.
        findings: what is said of lines, by file and line.
        to: what it was ported to.
    """

    before: dict[str, str]
    after: dict[str, str]
    findings: tuple[Finding, ...]
    to: str = "poptorch"

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return worst(list(self.findings))

    @property
    def unfinished(self) -> tuple[Finding, ...]:
        """Findings that are manual or block the port."""
        return tuple(
            each for each in self.findings if each.verdict in (Verdict.MANUAL, Verdict.BLOCKED)
        )

    @property
    def left_out(self) -> tuple[Finding, ...]:
        """The lines at which rows of the data are left out."""
        return tuple(each for each in self.findings if each.code in _LEAVE_OUT)

    @property
    def runs(self) -> bool:
        """Return whether any part of the result runs on abele."""
        every = " ".join(self.after.values())
        return self.to == "torch" or "trainingModel(" in every or "inferenceModel(" in every

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.verdict in (Verdict.MATCH, Verdict.MODIFIED):
            if not self.runs:
                return _NOTHING_RUNS
            if self.left_out and self.verdict is Verdict.MODIFIED:
                return _LEFT_OUT.format(", ".join(dict.fromkeys(e.code for e in self.left_out)))
        return SENTENCES[self.verdict]


#: Findings of lines at which training has fewer rows than the original.
_LEAVE_OUT = frozenset(("ABP204", "ABP207"))
_MISSING = "ABP601"  # a module that is not here, which is always named
_LEFT_OUT = (
    "The program is ported. Rows at the end of an epoch may be left out, at the lines with {}: "
    "choose a batch_size that divides the number of rows if that is not meant."
)
_NOTHING_RUNS = (
    "No training step and no evaluation of a model was found: nothing of this program would run on "
    "abele."
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
    after |= context.added
    for name, text in after.items():
        require_python(name, text)  # what is written can be read
    findings = sorted(
        set(context.findings),
        key=lambda each: (order[each.path], each.line, each.code, each.column, each.reason),
    )
    return Port(before=_texts(project), after=after, findings=tuple(findings), to=to)


def _texts(project: Project) -> dict[str, str]:
    return {source.name: source.text for source in project.sources}


def summary(result: Port, verbose: bool = False) -> str:
    """Return lines of a port that need somebody, counts, and the verdict in a sentence.

    Args:
        result: the port.
        verbose: whether lines that are changed, or stay and are worth a word, are named, too.
    """
    some = {*result.unfinished, *result.left_out}
    findings = [e for e in result.findings if verbose or e in some or e.code == _MISSING]
    lines = [each.with_line() for each in findings]
    counts = collections.Counter(each.verdict for each in result.findings)
    counted = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
    changed = sum(text != result.after[name] for name, text in result.before.items())
    count = "1 file" if len(result.before) == 1 else f"{len(result.before)} files"
    lines.append(f"{count}, {changed} changed; lines: {counted}")
    lines.append(result.sentence)
    return "\n".join(lines)
