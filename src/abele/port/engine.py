"""Applies every porting rule to a program."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools

from abele.port.context import Context
from abele.port.finding import SENTENCES, Finding, Verdict, worst
from abele.port.project import Project
from abele.port.rules import BY_TARGET
from abele.port.source import require_python


@dataclasses.dataclass(frozen=True, kw_only=True)
class Port:
    """A program before and after porting, with the findings of all rules.

    Attributes:
        before: the original text of each file.
        after: the text of each ported file, including added files.
        findings: findings, sorted by file and line.
        to: the target of the port, ``poptorch`` or ``torch``.
    """

    before: dict[str, str]
    after: dict[str, str]
    findings: tuple[Finding, ...]
    to: str = "poptorch"

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of a port's findings."""
        return worst(list(self.findings))

    @property
    def unfinished(self) -> tuple[Finding, ...]:
        """Findings of a port that are *manual* or *blocked*."""
        return tuple(
            each for each in self.findings if each.verdict in (Verdict.MANUAL, Verdict.BLOCKED)
        )

    @property
    def left_out(self) -> tuple[Finding, ...]:
        """Findings of lines at which the port drops samples of an incomplete last batch."""
        return tuple(each for each in self.findings if each.code in _LEAVE_OUT)

    @functools.cached_property
    def wrappers(self) -> set[str]:
        """The wrappers of models, ``trainingModel`` or ``inferenceModel``, that a port calls."""
        nodes = [node for text in self.after.values() for node in ast.walk(ast.parse(text))]
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        return {getattr(each, "attr", getattr(each, "id", "")) for each in called} & _WRAPPERS

    @property
    def runs(self) -> bool:
        """True if any part of the ported program runs on abele."""
        return self.to == "torch" or bool(self.wrappers)

    @property
    def sentence(self) -> str:
        """The verdict on a port in sentences, with the rows that it leaves out."""
        if self.verdict is Verdict.BLOCKED or self.to == "torch":
            return SENTENCES[self.verdict]
        if not self.runs:
            return _NOTHING_RUNS
        said = [SENTENCES[self.verdict]]
        if self.left_out and self.verdict is Verdict.MODIFIED:
            said = ["The program is ported."]
        if "trainingModel" not in self.wrappers:
            said.append(_ONLY_EVALUATES)
        for each in self.left_out:
            count, found, _ = each.reason.partition(" rows of every epoch: ")
            start = f"It leaves out {count} rows of every epoch" if found else _MAY_LEAVE_OUT
            said.append(f"{start}: {each.path}:{each.line}.")
        return "\n".join([*said, _DIVIDE] if self.left_out else said)


#: Findings of lines at which training has fewer rows than the original.
_LEAVE_OUT = frozenset(("ABP204", "ABP207"))
_MISSING = "ABP601"  # a module that is not here, which is always named
_DIVIDE = "Choose a batch_size that divides the number of rows if that is not meant."
_MAY_LEAVE_OUT = "It leaves out the rows of every epoch that fill no batch (--check counts them)"
_WRAPPERS = frozenset(("trainingModel", "inferenceModel"))
_ONLY_EVALUATES = "No training step was found: only evaluation would run on abele."
_NOTHING_RUNS = (
    "No training step and no evaluation of a model was found: nothing of this program would run on "
    "abele. A library may train its model: abele.compile is for plain PyTorch (docs/compile.md)."
)


def port(project: Project, popdist: bool = False, to: str = "poptorch") -> Port:
    """Port a program in memory, without writing files.

    Args:
        project: the program.
        popdist: whether the port runs in several instances.
        to: the target of the port, ``poptorch`` or ``torch``.
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
    before = {source.name: source.text for source in project.sources}
    return Port(before=before, after=after, findings=tuple(findings), to=to)


def summary(result: Port, verbose: bool = False) -> str:
    """Format a port's unfinished lines, its number of findings, and the verdict.

    Args:
        result: the port.
        verbose: whether to include lines that were changed, or left with a remark.
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
