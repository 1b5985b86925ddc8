"""Splits a loop that trains or evaluates, as a condition says, into a branch for each.

``if phase == "train": loss.backward()`` after a forward pass that both share would be two programs.
Rules see the file with the forward pass in both branches; lines are those of the file as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port import tree
from abele.port.analysis import assumed
from abele.port.analysis.flow import changes, reads, writes
from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import calls_of, is_call, statement_of
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Project
from abele.port.source import Source


@dataclasses.dataclass(frozen=True)
class _Shared:
    """A forward pass that training and evaluation share.

    Attributes:
        block: around the statements that become two branches.
        first: of these statements; or the ``with`` that switches gradients, which has the rest.
        condition: the last of them, which trains if it is true.
        zero: statements of the block that forget gradients before.
        switched: statements of the pass that are under a ``with`` that switches gradients.
    """

    block: cst.CSTNode
    first: cst.CSTNode
    condition: cst.If
    zero: tuple[cst.CSTNode, ...]
    switched: frozenset[cst.CSTNode]


class Branched(Source):
    """A file with branches of their own for training and evaluation."""

    def __init__(self, whole: Source, shared: Sequence[_Shared]):
        """Make the branches.

        Args:
            whole: the file.
            shared: forward passes that both do.
        """
        self._whole, splitter = whole, _Splitter(shared)
        module = whole.module.visit(splitter)
        self._origins = splitter.origins
        self._set(whole.name, whole.text, module)

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Line and column of a node, in the file as it was."""
        return self._whole.position(self._origins.get(node, node))


def branched(project: Project) -> Project:
    """A program whose training steps have branches of their own, where a condition says so.

    It is the same program if there are no such steps.
    """
    things: Things | None = None
    sources: list[Source] = []
    for source in project.sources:
        conditions = list(_conditions(source))
        if conditions:
            things = things or Things(project)
        shared = [
            each
            for condition, call in conditions
            for each in _shared(source, things or Things(project), condition, call)
        ]
        sources.append(Branched(source, shared) if shared else source)
    return Project(sources) if any(isinstance(each, Branched) for each in sources) else project


def _conditions(source: Source) -> Iterator[tuple[cst.If, cst.Call]]:
    """Conditions that decide whether a loss, which is there before, is differentiated."""
    for call in calls_of(source.module, "backward"):
        statement: Any = statement_of(source, call)
        block = source.parent(statement)
        condition = None if block is None else source.parent(block)
        assert isinstance(call.func, cst.Attribute)
        if (
            isinstance(condition, cst.If)
            and isinstance(block, cst.IndentedBlock)
            and condition.body is block
            and assumed.plain(condition.test)
            and not isinstance(source.parent(condition), cst.If)
            and not (condition.orelse and calls_of(condition.orelse, "backward"))
            and {*reads(call.func.value)} - {*writes(block)}
        ):
            yield condition, call


def _shared(source: Source, things: Things, condition: cst.If, call: cst.Call) -> Iterator[_Shared]:
    """The forward pass before a condition; nothing if it does not lead to the loss."""
    inner: Any = source.parent(condition)
    before: list[Any] = list(inner.body[: list(inner.body).index(condition)])
    first = next((each for each in before if _uses_model(source, things, each)), None)
    names = assumed.names_of(assumed.plain(condition.test))
    if first is None or not {*reads(call.func)} & {
        name for each in before for name in writes(each)
    }:
        return
    part = before[before.index(first) :]
    outer: Any = inner
    begin, around = first, source.parent(inner)
    if isinstance(around, cst.With) and _switches(source, around, None):
        if not _switches(source, around, condition.test):
            return
        outer, begin, part = source.parent(around), around, before
    if any(names & {*writes(each), *changes(each)} for each in part):
        return
    switched = {each for each in part if _switches(source, each, None)}
    if not all(_switches(source, each, condition.test) for each in switched):
        return
    earlier: list[Any] = list(outer.body)[: list(outer.body).index(begin)]
    zero = [each for each in (*earlier, *part) if is_call(each) and calls_of(each, "zero_grad")]
    yield _Shared(outer, begin, condition, tuple(zero), frozenset(switched))


def _uses_model(source: Source, things: Things, statement: cst.CSTNode) -> bool:
    """Whether a statement computes something with a model, perhaps in another function."""
    names = findall(statement, m.Name() | m.Attribute()) if writes(statement) else []
    return any(things.of(source, each, Kind.MODEL) for each in names)


def _switches(source: Source, statement: cst.CSTNode, test: cst.BaseExpression | None) -> bool:
    """Whether a ``with`` does nothing but compute gradients if a condition is true."""
    if not isinstance(statement, cst.With) or len(statement.items) != 1:
        return False
    call = statement.items[0].item
    if not isinstance(call, cst.Call) or len(call.args) != 1:
        return False
    name = source.imported(call.func)
    argument = call.args[0].value
    return (
        name.startswith("torch.")
        and name.endswith("set_grad_enabled")
        and (
            test is None
            or (
                assumed.plain(argument) == assumed.plain(test)
                and assumed.is_negated(argument) is assumed.is_negated(test)
            )
        )
    )


class _Splitter(cst.CSTTransformer):
    """Makes two branches of what training and evaluation share, and remembers what nodes were."""

    def __init__(self, shared: Sequence[_Shared]):
        super().__init__()
        self._shared = {each.block: each for each in shared}
        self.origins: dict[cst.CSTNode, cst.CSTNode] = {}

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if original_node in self._shared and isinstance(updated_node, cst.CSTNode):
            self.origins[updated_node] = original_node
            updated_node = self._split(self._shared[original_node], original_node, updated_node)
        if isinstance(updated_node, cst.CSTNode):
            self.origins[updated_node] = original_node
        return super().on_leave(original_node, updated_node)

    def _split(self, shared: _Shared, original: Any, block: Any) -> Any:
        """A block with a condition in the place of the statements of both."""
        body = dict(zip(original.body, block.body, strict=True))
        statements = list(original.body)
        start = statements.index(shared.first)
        switch = shared.first if isinstance(shared.first, cst.With) else None
        switch = None if shared.first in shared.switched else switch
        forward: list[Any] = list(switch.body.body) if switch else statements[start:]
        at = forward.index(shared.condition)
        rest = statements[start + 1 :] if switch else []
        if switch:
            body |= dict(zip(forward, body[switch].body.body, strict=True))
        common = [each for each in forward[:at] if each not in shared.zero]
        both = self._both(body, shared, common)
        kept = [each for each in statements[:start] if each not in shared.zero]
        later = [body[each] for each in (*forward[at + 1 :], *rest)]
        return block.with_changes(body=[*(body[each] for each in kept), both, *later])

    def _both(self, body: Mapping[Any, Any], shared: _Shared, common: Sequence[Any]) -> Any:
        """The condition with a branch that trains and one that does not.

        Args:
            body: what each statement has become.
            shared: what the branches share.
            common: the statements of both.
        """
        first, condition = body[shared.first], body[shared.condition]
        zero = [body[each] for each in shared.zero]
        same: list[Any] = []
        for each in common:
            same += body[each].body.body if each in shared.switched else [body[each]]
        train = self._block(condition.body, [*zero, *same, *condition.body.body])
        other = [self._other(shared, each, body[each]) for each in common]
        if isinstance(shared.first, cst.With) and shared.first not in shared.switched:
            other = [self._same(first, _without_gradients(first, self._block(first.body, other)))]
        if isinstance(condition.orelse, cst.Else):
            other += list(condition.orelse.body.body)
        orelse = self._same(condition, cst.Else(self._block(condition.body, other)))
        changed = condition.with_changes(
            body=train, orelse=orelse, leading_lines=first.leading_lines
        )
        return self._same(condition, changed)

    def _other(self, shared: _Shared, statement: Any, node: Any) -> Any:
        """A statement of both as it is where nothing trains."""
        copied = self._copy(node)
        if statement not in shared.switched:
            return copied
        return self._same(node, _without_gradients(copied, copied.body))

    def _block(self, original: cst.CSTNode, body: Sequence[Any]) -> Any:
        return self._same(original, cst.IndentedBlock(body=list(body)))

    def _copy(self, node: Any) -> Any:
        """A copy of a node, whose parts stand for what its parts stand for."""
        copied = node.deep_clone()
        pairs = zip(tree.walk(node), tree.walk(copied), strict=True)
        self.origins.update((new, self.origins[old]) for old, new in pairs if old in self.origins)
        return copied

    def _same(self, original: cst.CSTNode, node: Any) -> Any:
        self.origins[node] = self.origins[original]
        return node


def _without_gradients(statement: cst.With, body: cst.BaseSuite) -> cst.With:
    """A ``with`` that computes no gradients."""
    call = cst.ensure_type(statement.items[0].item, cst.Call)
    if isinstance(call.func, cst.Attribute):
        func = call.func.with_changes(attr=cst.Name("no_grad"))
        call = call.with_changes(func=func.deep_clone(), args=[])
    else:
        call = call.deep_clone().with_changes(args=[cst.Arg(cst.Name("False"))])
    return statement.with_changes(items=[cst.WithItem(call)], body=body, leading_lines=[])
