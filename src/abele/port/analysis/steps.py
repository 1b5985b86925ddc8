"""Finds training steps: the statements from a model's call to the update of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import changes, needs, reads, writes
from abele.port.analysis.forgetting import is_forgotten
from abele.port.analysis.helpers import Helpers
from abele.port.analysis.keys import read_by_key
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.numbers import is_number, is_size
from abele.port.analysis.parts import (
    Loop,
    Statement,
    StepError,
    block_of,
    calls_of,
    is_call,
    statement_of,
)
from abele.port.analysis.scopes import is_method, names_in
from abele.port.analysis.search import findall
from abele.port.analysis.slow_values import changed_outside, check_functions, is_display
from abele.port.analysis.step import Step
from abele.port.analysis.things import Things
from abele.port.analysis.updates import Update, read_update
from abele.port.project import Project
from abele.port.source import Source

__all__ = ["Loop", "Statement", "Step", "StepError", "block_of", "calls_of", "statement_of"]


def training_steps(project: Project, things: Things) -> Iterator[tuple[Source, Step | StepError]]:
    """Every training step of a program, or why it is none that can be ported."""
    for source in project.sources:
        for call in calls_of(source.module, "backward"):
            try:
                yield source, _Reader(source, project, things, call).step()
            except StepError as error:
                yield source, error


class _Reader:
    """Reads the step around one call of ``backward``."""

    def __init__(self, source: Source, project: Project, things: Things, call: cst.Call):
        self._helpers, self._project = Helpers(project, things), project
        self._source, self._things, self._call = source, things, call
        self._backward = statement_of(source, call)
        self._block = block_of(source, self._backward)
        self._owner = things.owner(source, call)
        loop = source.enclosing(call, cst.For, cst.While, cst.FunctionDef)
        self._loop = loop if isinstance(loop, cst.For | cst.While) else None

    def step(self) -> Step:
        """Read it."""
        self._check_call()
        index = self._block.index(self._backward)
        gradients = read_update(self._source, self._things, self._block, self._call, index)
        loss, differentiated = self._loss()
        named = () if differentiated is None else (_assignment(loss, differentiated),)
        forward = (*self._forward(index, loss, differentiated), *named)
        self._check_attributes(forward)
        models = self._known_models(forward, loss)
        zero = tuple(self._zero(gradients, {*gradients.optimizers, *models}))
        self._check_forgetting(gradients, {*gradients.optimizers, *models})
        also = [each.statement for each in gradients.removed]
        rest = {self._backward, gradients.statement, *zero, *also, *forward}
        self._check_way(forward, gradients.statement, rest)
        slow = changed_outside(self._source, self._things, self._backward, gradients.optimizers)
        check_functions(self._source, self._things, forward, slow)
        needed, varying = self._needed(forward), self._varying(slow)
        carried = self._carried(forward, needed)
        return Step(
            source=self._source,
            owner=self._owner,
            loop=self._loop,
            block=self._block,
            loss=loss,
            forward=forward,
            place=self._backward if named else forward[-1],
            backward=self._backward,
            zero=zero,
            update=gradients.statement,
            models=models,
            helpers=tuple(self._helpers.functions),
            optimizer=gradients.optimizers[0],
            gradients=gradients,
            inputs=(inputs := tuple(name for name in needed if name in varying)),
            keys={each: self._keys(forward, each) for each in inputs if each not in carried},
            slow=tuple(each for each in needed if self._is_slow(forward, slow, each)),
            constants=tuple(name for name in needed if name not in varying),
            outputs=self._outputs(forward, rest, carried, loss),
            carried=tuple(name for name in carried if name in varying),
            later=frozenset(self._used_after()),
        )

    def _check_call(self) -> None:
        """The call stands alone and is given nothing.

        Raises:
            StepError: it does not, or is.
        """
        if self._call.args:
            raise StepError(
                self._call,
                "backward() has arguments, and a compiled program calls it without: take them "
                "out, and multiply the loss by the weights before",
            )
        if len(getattr(self._backward, "body", ())) > 1:
            raise StepError(
                self._call, "several statements are on this line: give each a line of its own"
            )

    def _loss(self) -> tuple[str, cst.BaseExpression | None]:
        """The name of what is differentiated, and the expression where it has none."""
        func = self._call.func
        assert isinstance(func, cst.Attribute)
        if not is_call(self._backward):
            raise StepError(
                self._call,
                "backward() is part of a larger expression: call it in a statement of its own",
            )
        value = func.value
        scale = m.Call(func=m.Attribute(attr=m.Name("scale")), args=[m.Arg()])
        if m.matches(value, scale) and isinstance(value, cst.Call):
            assert isinstance(value.func, cst.Attribute)
            if self._things.of(self._source, value.func.value, Kind.SCALER):
                value = value.args[0].value
        if isinstance(value, cst.Name):
            return value.value, None
        around = self._owner.body if isinstance(self._owner, cst.FunctionDef) else self._owner
        used = {*reads(around), *writes(around)}
        return next(name for name in _LOSSES if name not in used), value

    def _check_attributes(self, forward: Sequence[Statement]) -> None:
        """A program returns values; it cannot give them to attributes of an object.

        Raises:
            StepError: the statements would.
        """
        target = m.AssignTarget(m.Attribute(value=m.Name("self")))
        inside = m.AssignTarget(m.Tuple(elements=[m.ZeroOrMore(), _ATTRIBUTE, m.ZeroOrMore()]))
        for statement in forward:
            for node in findall(statement, target | inside):
                reason = "the forward pass cannot change an attribute; use a variable, and then"
                raise StepError(node, f"{reason} give its value to the attribute")

    def _check_way(
        self, forward: Sequence[Statement], update: Statement, rest: set[Statement]
    ) -> None:
        """Nothing between the model's call and the update may prevent the update, or see gradients.

        Raises:
            StepError: something does.
        """
        real = [each for each in forward if each in self._block]
        first = self._block.index(real[0] if real else self._backward)
        leave = m.Continue() | m.Break() | m.Return() | m.Raise()
        for statement in self._block[first : self._block.index(update)]:
            if statement in rest:
                continue
            for node in findall(statement, leave):
                raise StepError(
                    node,
                    "this may skip the update, and a compiled program always makes it: move "
                    "this after the update",
                )
        gradient = m.Attribute(attr=m.Name("grad"))
        for statement in self._block[first:]:
            for node in () if statement in rest else findall(statement, gradient):
                raise StepError(
                    node,
                    "a compiled program keeps gradients on its device: opts.anchorTensor "
                    "returns them",
                )

    def _check_forgetting(self, gradients: Update, trained: set[Thing]) -> None:
        """Gradients are forgotten once for each update.

        Raises:
            StepError: they are added up over all updates.
        """
        if gradients.every is None and not is_forgotten(
            self._source, self._things, self._call, trained
        ):
            raise StepError(
                self._call,
                "no zero_grad() is called between updates, so each update uses the sum of all "
                "gradients so far, and a compiled program uses those of its batch: if that is "
                "what you mean, call zero_grad() of the optimizer in each turn of the loop",
            )

    def _zero(self, gradients: Update, trained: set[Thing]) -> Iterator[Statement]:
        """Statements of the block that forget gradients."""
        first, last = map(self._block.index, (self._backward, gradients.statement))
        for index, statement in enumerate(self._block):
            if gradients.every is not None and statement is gradients.statement:
                continue
            for call in calls_of(statement, "zero_grad"):
                if first < index < last:
                    raise StepError(
                        call,
                        "zero_grad() is called between backward() and the update, and discards the "
                        "gradients: call it before backward() or after step()",
                    )
                if gradients.every is not None:
                    raise StepError(
                        call,
                        "zero_grad() is called for each batch, so that nothing is added up: call "
                        "it after step(), under its condition",
                    )
                assert isinstance(call.func, cst.Attribute)
                things = self._things.of(self._source, call.func.value)
                if things and not things & trained:
                    if any(each.kind is Kind.OPTIMIZER for each in things):
                        raise StepError(
                            call,
                            "this zero_grad() is of another optimizer than the one that updates "
                            "in this step: put each update, from the model to step(), into a "
                            "function of its own",
                        )
                    continue
                if not m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
                    raise StepError(
                        call,
                        "whether zero_grad() is called depends on a condition: call it in each "
                        "turn of the loop",
                    )
                yield statement

    def _forward(
        self, end: int, loss: str, differentiated: cst.BaseExpression | None
    ) -> tuple[Statement, ...]:
        """The statements that lead from a model's call to the loss."""
        follows = self._following(end)
        needed = {loss} if differentiated is None else set(reads(differentiated))
        chosen = list[Statement]()
        for statement in reversed(self._block[:end]):
            written = {*writes(statement), *changes(statement)} & needed
            if not written or statement not in follows:
                continue
            chosen.append(statement)
            if isinstance(statement, cst.SimpleStatementLine):
                needed -= written
            needed |= set(reads(statement))
        self._add_rebound(chosen, end)
        if not chosen and differentiated is None:
            raise StepError(self._call, self._why_no_forward(loss))
        return tuple(reversed(chosen))

    def _add_rebound(self, chosen: list[Statement], end: int) -> None:
        """Add what gives a name another value after one of the statements has read it.

        Args:
            chosen: the statements so far, the latest first.
            end: where in the block they end.

        Raises:
            StepError: the name has that value for others only, who would see it too early.
        """
        first = self._block.index(chosen[-1]) if chosen else end
        for index in range(first + 1, end):
            statement = self._block[index]
            before = [each for each in chosen if self._block.index(each) < index]
            again = {*writes(statement), *changes(statement)}
            again &= {name for each in before for name in reads(each)}
            if statement in chosen or not again:
                continue
            if not again & {name for each in chosen if each not in before for name in reads(each)}:
                name = min(again)
                reason = f"{name} gets another value before the loss is computed"
                raise StepError(statement, f"{reason}; give that value a name of its own")
            chosen.insert(len(chosen) - len(before), statement)

    def _carried(self, forward: Sequence[Statement], needed: Sequence[str]) -> list[str]:
        """Names that the statements bind and that those of the next step need."""
        kept = self._declared()
        if self._loop is None:
            return [name for name in _written(forward) if name in needed and name in kept]
        target = self._loop.target if isinstance(self._loop, cst.For) else cst.Tuple([])
        fresh = set(names_in(target))
        for statement in self._before(forward):
            carried = set(needs(statement)) - fresh
            fresh |= set(writes(statement)) - carried
        return [name for name in _written(forward) if name in needed and name not in fresh]

    def _declared(self) -> set[str]:
        """Names of the function around that outlive it."""
        declared = findall(self._owner, m.Global() | m.Nonlocal())
        return {
            item.name.value
            for each in declared
            if isinstance(each, cst.Global | cst.Nonlocal)
            for item in each.names
        }

    def _before(self, forward: Sequence[Statement]) -> list[Statement]:
        """The statements of the loop's body, and of blocks in it, that come before the step."""
        before: list[Statement] = []
        real = [each for each in forward if each in self._block]
        place: cst.CSTNode = real[0] if real else self._backward
        for each in (*self._source.above(place),):
            if isinstance(each, cst.IndentedBlock | cst.Module):
                body = list(each.body)
                before[:0] = body[: body.index(place)]  # type: ignore[arg-type]
            if each is self._loop:
                break
            place = each if isinstance(each, cst.BaseCompoundStatement) else place
        index = self._block.index(self._backward)
        return before + [each for each in self._block[:index] if each not in (*before, *forward)]

    def _why_no_forward(self, loss: str) -> str:
        around = self._source.enclosing(self._call, cst.If, cst.For, cst.While, cst.FunctionDef)
        if isinstance(around, cst.If):
            return (
                "a condition decides whether this loop trains or evaluates, which are two "
                "compiled programs: write a loop for each"
            )
        return (
            f"{loss!r} is not computed from a model in this block: call the model, the loss and "
            "backward() in one block"
        )

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

    def _known_models(
        self, forward: Sequence[Statement], loss: str
    ) -> dict[Thing, cst.BaseExpression]:
        """The models of a step.

        Raises:
            StepError: none is known.
        """
        self._helpers.functions.clear()
        models = self._models(forward)
        if not models:
            raise StepError(
                self._call,
                f"the model that computes {loss!r} was not found: call it in this block, and "
                "assign what it returns to variables, not to attributes",
            )
        return models

    def _models(self, statements: Sequence[Statement]) -> dict[Thing, cst.BaseExpression]:
        """The models that statements call, or whose methods they call."""
        models: dict[Thing, cst.BaseExpression] = {}
        for statement in statements:
            for call in findall(statement, m.Call()):
                assert isinstance(call, cst.Call)
                for node in (call.func, getattr(call.func, "value", None)):
                    if not isinstance(node, cst.Name | cst.Attribute):
                        continue
                    for thing in self._things.of(self._source, node, Kind.MODEL):
                        if not m.matches(call.func, m.Attribute(attr=_NO_FORWARD)):
                            models.setdefault(thing, node)
            for thing, expression in self._helpers.models(self._source, statement):
                models.setdefault(thing, expression)
            for node in self._parts_of_models(statement):
                for thing in self._things.of(self._source, node, Kind.MODEL):
                    models.setdefault(thing, node)
        return models

    def _parts_of_models(self, statement: Statement) -> Iterator[cst.BaseExpression]:
        """Names of which a statement reads a part, such as ``model.head.weight``."""
        for node in findall(statement, m.Attribute() | m.Subscript()):
            if isinstance(node.value, cst.Name | cst.Attribute) and not m.matches(
                node, m.Attribute(attr=_NO_PART)
            ):
                yield node.value

    def _needed(self, forward: Sequence[Statement]) -> list[str]:
        """Names that the statements read before they write them."""
        written: set[str] = set()
        needed: dict[str, None] = {}
        for statement in forward:
            needed |= {name: None for name in needs(statement) if name not in written}
            written |= set(writes(statement))
        return list(needed)

    def _keys(self, forward: Sequence[Statement], name: str) -> tuple[str, ...]:
        """Keys by which the statements read a dictionary, if they read nothing else of it."""
        return read_by_key(self._project, self._things, self._source, name, forward)

    def _varying(self, slow: set[str]) -> set[str]:
        """Names that may be others in each step."""
        if self._loop is not None:
            return {*writes(self._loop), *slow} - {"self"}
        owner = self._owner
        if isinstance(owner, cst.FunctionDef):
            params = [each.name for each in owner.params.params][is_method(owner) :]
            values = {each.value for each in params if not self._things.of(self._source, each)}
            return {*writes(owner.body), *values, *slow}
        return slow

    def _is_slow(self, forward: Sequence[Statement], slow: set[str], name: str) -> bool:
        """Whether a name gets other values outside of the loop, or is a number in it."""
        if name not in self._varying(slow):
            return False
        fresh = self._fresh(forward)
        written = name in _written(forward)
        inside = name in fresh and not written and self._loop is not None
        passed = name not in fresh and self._loop is None
        if inside or passed:
            node = self._named(forward, name)
            around = self._loop or self._owner
            return (
                node is not None
                and is_number(self._source, self._things, node)
                and not is_size(self._source, around, name)
            )
        return name in slow - fresh and not is_display(self._source, name)

    def _named(self, forward: Sequence[Statement], name: str) -> cst.Name | None:
        """A node of the statements that is a name."""
        nodes = [each for statement in forward for each in findall(statement, m.Name(name))]
        return next((each for each in nodes if self._source.parent(each) is not None), None)

    def _fresh(self, forward: Sequence[Statement]) -> set[str]:
        """Names that each step of the loop, or the program itself, gives other values."""
        again = () if self._loop is None else writes(self._loop)
        return {*again, *_written(forward)}

    def _outputs(
        self,
        forward: Sequence[Statement],
        rest: set[Statement],
        carried: Sequence[str],
        loss: str,
    ) -> tuple[str, ...]:
        """Names that the forward statements write and others, or the next step, read."""
        used = self._declared() | self._used_after() | {*carried}
        for statement in self._block:
            if statement not in rest:
                used |= set(reads(statement))
        return tuple(name for name in _written(forward) if name in used and name != loss)

    def _used_after(self) -> set[str]:
        """Names that are read in the function after the block."""
        parent: cst.CSTNode = self._backward
        used: set[str] = set()
        for each in self._source.above(self._backward):
            if isinstance(each, cst.IndentedBlock | cst.Module) and parent is not self._backward:
                later = each.body[list(each.body).index(parent) + 1 :]  # type: ignore[arg-type]
                used |= set(needs(*later))
            if isinstance(each, cst.For | cst.While) and each is not self._loop:
                used |= set(needs(*each.body.body))
            parent = each
            if isinstance(each, cst.FunctionDef):
                break
        return used


#: Names for what is differentiated and has none.
_LOSSES = ("loss", "total_loss", "objective", "loss_to_minimize", *map("loss_{}".format, range(99)))


def _written(forward: Sequence[Statement]) -> list[str]:
    """Names that statements bind, each once."""
    return list(dict.fromkeys(name for each in forward for name in writes(each)))


def _assignment(name: str, value: cst.BaseExpression) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], value)])


_ATTRIBUTE = m.Element(m.Attribute(value=m.Name("self")))
_NO_FORWARD = m.OneOf(*map(m.Name, ("train", "eval", "state_dict", "zero_grad", "to", "cuda")))
_NO_PART = m.OneOf(_NO_FORWARD, m.Name("training"), m.Name("module"))
