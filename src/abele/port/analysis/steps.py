"""Where a program trains: the statements from a model's call to the update of its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import changes, reads, writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.scopes import is_method
from abele.port.analysis.things import Things
from abele.port.project import Owner, Project
from abele.port.source import Source

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
Loop: TypeAlias = cst.For | cst.While


class StepError(Exception):
    """A step that cannot be ported, with the node that says why."""

    def __init__(self, node: cst.CSTNode, reason: str):
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One training step.

    Attributes:
        source: its file.
        owner: the function, or module, around it.
        loop: around it in that function; None where the function is one step.
        block: the statements among which it is.
        loss: the name that is differentiated.
        forward: the statements of the block that lead from the model to the loss.
        backward: the statement that differentiates.
        zero: statements that forget gradients.
        update: the statement that updates.
        models: that the forward statements call, each with the expression that stands for it.
        optimizer: that updates.
        inputs: names that the forward statements need from the loop.
        constants: names that they need from the function, and that are the same in every step.
        outputs: names that they define and others use, without the loss.
    """

    source: Source
    owner: Owner
    loop: Loop | None
    block: Sequence[Statement]
    loss: str
    forward: tuple[Statement, ...]
    backward: Statement
    zero: tuple[Statement, ...]
    update: Statement
    models: dict[Thing, cst.BaseExpression]
    optimizer: Thing
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]


def calls_of(node: cst.CSTNode, method: str) -> list[cst.Call]:
    """The calls of a method, such as ``backward``, in a piece of a program."""
    pattern = m.Call(func=m.Attribute(attr=m.Name(method)))
    return [each for each in m.findall(node, pattern) if isinstance(each, cst.Call)]


def statement_of(source: Source, node: cst.CSTNode) -> Statement:
    """The statement around an expression."""
    for each in (node, *source.above(node)):
        if isinstance(each, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return each
    raise AssertionError("an expression is in a statement")


def block_of(source: Source, statement: Statement) -> Sequence[Statement]:
    """The statements among which one is."""
    parent = source.parent(statement)
    assert isinstance(parent, cst.IndentedBlock | cst.Module)
    return [
        each
        for each in parent.body
        if isinstance(each, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    ]


def training_steps(project: Project, things: Things) -> Iterator[tuple[Source, Step | StepError]]:
    """Every training step of a program, or why it is none that can be ported."""
    for source in project.sources:
        for call in calls_of(source.module, "backward"):
            try:
                yield source, _Reader(source, things, call).step()
            except StepError as error:
                yield source, error


class _Reader:
    """Reads the step around one call of ``backward``."""

    def __init__(self, source: Source, things: Things, call: cst.Call):
        self._source, self._things, self._call = source, things, call
        self._backward = statement_of(source, call)
        self._block = block_of(source, self._backward)
        self._owner = things.owner(source, call)
        loop = source.enclosing(call, cst.For, cst.While, cst.FunctionDef)
        self._loop = loop if isinstance(loop, cst.For | cst.While) else None

    def step(self) -> Step:
        """Read it."""
        if self._call.args:
            raise StepError(self._call, "backward with arguments has no counterpart in a program")
        loss = self._loss()
        index = self._block.index(self._backward)
        update, optimizer = self._update(index)
        zero = tuple(self._zero(optimizer))
        forward = self._forward(index, loss)
        models = self._models(forward)
        if not models:
            raise StepError(self._call, f"no model is known that {loss!r} is computed by")
        needed = self._needed(forward)
        varying = self._varying()
        rest = {self._backward, update, *zero, *forward}
        return Step(
            source=self._source,
            owner=self._owner,
            loop=self._loop,
            block=self._block,
            loss=loss,
            forward=forward,
            backward=self._backward,
            zero=zero,
            update=update,
            models=models,
            optimizer=optimizer,
            inputs=tuple(name for name in needed if name in varying),
            constants=tuple(name for name in needed if name not in varying),
            outputs=tuple(name for name in self._used_outside(forward, rest) if name != loss),
        )

    def _loss(self) -> str:
        func = self._call.func
        assert isinstance(func, cst.Attribute)
        if not m.matches(self._backward, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
            raise StepError(self._call, "backward is called inside a larger expression")
        if not isinstance(func.value, cst.Name):
            raise StepError(
                self._call,
                f"what is differentiated has no name; assign {self._source.code(func.value)} first",
            )
        return func.value.value

    def _update(self, index: int) -> tuple[Statement, Thing]:
        """The statement after backward that updates, and its optimizer."""
        updates: dict[Thing, Statement] = {}
        for statement in self._block[index + 1 :]:
            for call in calls_of(statement, "step"):
                assert isinstance(call.func, cst.Attribute)
                made = self._things.of(self._source, call.func.value, Kind.OPTIMIZER)
                if len(made) > 1:
                    raise StepError(call, "which optimizer this is depends on the call")
                for optimizer in made:
                    self._check_update(call, statement, optimizer)
                    updates[optimizer] = statement
        if not updates:
            raise StepError(self._call, "no optimizer's step follows in the same block")
        if len(updates) > 1:
            raise StepError(
                self._call, "two optimizers update in turn; a program has one for all parameters"
            )
        ((optimizer, statement),) = updates.items()
        return statement, optimizer

    def _check_update(self, call: cst.Call, statement: Statement, optimizer: Thing) -> None:
        if call.args:
            raise StepError(call, "a step with a closure evaluates the model several times")
        if not m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
            raise StepError(call, "the update depends on a condition")
        if optimizer.name.endswith(".LBFGS"):
            raise StepError(call, "LBFGS evaluates the model several times in one update")

    def _zero(self, optimizer: Thing) -> Iterator[Statement]:
        """Statements of the block that forget gradients."""
        for statement in self._block:
            for call in calls_of(statement, "zero_grad"):
                assert isinstance(call.func, cst.Attribute)
                things = self._things.of(self._source, call.func.value)
                models = any(each.kind is Kind.MODEL for each in things)
                if optimizer not in things and not models:
                    raise StepError(call, "gradients of another optimizer are forgotten here")
                if not m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
                    raise StepError(call, "when gradients are forgotten depends on a condition")
                yield statement

    def _forward(self, end: int, loss: str) -> tuple[Statement, ...]:
        """The statements that lead from a model's call to the loss."""
        follows = self._following(end)
        needed, chosen = {loss}, list[Statement]()
        for statement in reversed(self._block[:end]):
            written = {*writes(statement), *changes(statement)} & needed
            if not written or statement not in follows:
                continue
            chosen.append(statement)
            if isinstance(statement, cst.SimpleStatementLine):
                needed -= written
            needed |= set(reads(statement))
        if not chosen:
            raise StepError(self._call, f"{loss!r} is not computed from a model in the same block")
        return tuple(reversed(chosen))

    def _following(self, end: int) -> set[Statement]:
        """Statements that call a model or use what it computed."""
        names: set[str] = set()
        follows: set[Statement] = set()
        for statement in self._block[:end]:
            if self._calls_model(statement) or names & set(reads(statement)):
                follows.add(statement)
                names |= {*writes(statement), *changes(statement)}
        return follows

    def _calls_model(self, statement: Statement) -> bool:
        return bool(self._models((statement,)))

    def _models(self, statements: Sequence[Statement]) -> dict[Thing, cst.BaseExpression]:
        """The models that statements call, or whose methods they call."""
        models: dict[Thing, cst.BaseExpression] = {}
        for statement in statements:
            for call in m.findall(statement, m.Call()):
                assert isinstance(call, cst.Call)
                for node in (call.func, getattr(call.func, "value", None)):
                    if not isinstance(node, cst.Name | cst.Attribute):
                        continue
                    for thing in self._things.of(self._source, node, Kind.MODEL):
                        if not m.matches(call.func, m.Attribute(attr=_NO_FORWARD)):
                            models.setdefault(thing, node)
        return models

    def _needed(self, forward: Sequence[Statement]) -> list[str]:
        """Names that the statements read before they write them."""
        written: set[str] = set()
        needed: dict[str, None] = {}
        for statement in forward:
            needed |= {name: None for name in reads(statement) if name not in written}
            written |= set(writes(statement))
        return list(needed)

    def _varying(self) -> set[str]:
        """Names that may be others in each step."""
        owner = self._owner
        if self._loop is not None:
            return set(writes(self._loop)) - {"self"}
        if isinstance(owner, cst.FunctionDef):
            params = [each.name.value for each in owner.params.params]
            return {*writes(owner.body), *params[is_method(owner) :]}
        return set()

    def _used_outside(self, forward: Sequence[Statement], rest: set[Statement]) -> list[str]:
        """Names that the forward statements write and that others read."""
        written = {name: None for each in forward for name in writes(each)}
        used: set[str] = set()
        for statement in self._block:
            if statement not in rest:
                used |= set(reads(statement))
        used |= self._used_after()
        return [name for name in written if name in used]

    def _used_after(self) -> set[str]:
        """Names that are read in the function after the block."""
        parent: cst.CSTNode = self._backward
        used: set[str] = set()
        for each in self._source.above(self._backward):
            if isinstance(each, cst.IndentedBlock | cst.Module) and parent is not self._backward:
                for later in each.body[list(each.body).index(parent) + 1 :]:  # type: ignore[arg-type]
                    used |= set(reads(later))
            parent = each
            if isinstance(each, cst.FunctionDef):
                break
        return used


_NO_FORWARD = m.OneOf(
    *map(m.Name, ("train", "eval", "parameters", "state_dict", "zero_grad", "to", "cuda"))
)
