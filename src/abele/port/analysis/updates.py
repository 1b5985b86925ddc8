"""Reads the statements after backward: the update, and what is done to gradients before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.by_hand import ByHand, forgets_all, read_by_hand
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, StepError, calls_of, is_call
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.analysis.update_conditions import Every, read_every
from abele.port.source import Source

_CLIP = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
_CONDITION = (
    "the update depends on a condition other than (i + 1) % k == 0, and a program makes one after "
    "each k batches: write that condition alone, where i is counted by 'for i, batch in "
    "enumerate(loader)', and leave out the batches that are too few at the end of an epoch"
)
_UNKNOWN = (
    "this optimizer, or what it updates, was not found: make it in the files that are ported, "
    "by the name of its class, as in torch.optim.SGD(model.parameters(), lr=0.1)"
)
_TWO_OPTIMIZERS = (
    "two optimizers update one after the other, and a compiled program has one: give one optimizer "
    "all parameters, in groups"
)
_TWO_UPDATES = (
    "this updates a second time with the same gradients, and a compiled program updates once: call "
    "step() once for each backward()"
)
_CLIP_VALUES = ("torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_value")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Removed:
    """A statement that a program does without.

    Attributes:
        statement: the statement.
        code: of what is said of it.
        reason: why it is not needed.
    """

    statement: Statement
    code: str
    reason: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Update:
    """How parameters are updated.

    Attributes:
        statement: that updates.
        optimizers: that may be the one; they share a name. The model, where none makes the update.
        by_hand: the update, where no optimizer makes it.
        clip: call that limits the norm of gradients; None if there is none.
        every: how many backwards there are for an update; None if there is one.
        counter: what counts them.
        start: what the counter is at the first of an epoch, 0 or 1.
        once: what else is done once for so many backwards, such as a scheduler's step.
        removed: other statements that the program does without.
    """

    statement: Statement
    optimizers: tuple[Thing, ...]
    by_hand: ByHand | None = None
    clip: cst.Call | None = None
    every: cst.BaseExpression | None = None
    counter: cst.Name | None = None
    start: int = 0
    once: tuple[Statement, ...] = ()
    removed: tuple[Removed, ...] = ()


def read_update(
    source: Source, things: Things, block: Sequence[Statement], backward: cst.Call, index: int
) -> Update:
    """The update that follows a call of backward.

    Args:
        source: the file.
        things: what its names stand for.
        block: the statements among which the call is.
        backward: the call.
        index: of its statement in the block.

    Raises:
        StepError: there is none, or it is none that a program makes.
    """
    return _Reader(source, things, block, backward, index).update()


class _Reader:
    """Reads the statements after one call of backward."""

    def __init__(
        self,
        source: Source,
        things: Things,
        block: Sequence[Statement],
        backward: cst.Call,
        index: int,
    ):
        self._source, self._things, self._backward = source, things, backward
        self._block, self._index = block, index
        loop = source.enclosing(backward, cst.For, cst.While, cst.FunctionDef)
        self._loop = loop if isinstance(loop, cst.For | cst.While) else None
        self._every: Every | None = None

    def update(self) -> Update:
        steps = list(self._steps())
        self._check_earlier()
        by_hand = None if steps else self._by_hand()
        if by_hand is not None:
            return by_hand
        if not steps:
            raise self._without()
        made = {thing for _, _, things in steps for thing in things}
        if len({frozenset(things) for _, _, things in steps}) > 1:
            raise StepError(steps[1][1], _TWO_OPTIMIZERS)
        if len(steps) > 1:
            raise StepError(steps[1][1], _TWO_UPDATES)
        ((statement, call, things),) = steps
        self._check(call, statement, made)
        ordered = sorted(things, key=_place)
        between = self._block[self._index + 1 : self._block.index(statement)]
        once: list[Statement] = []
        every = self._every
        if every is not None:
            before, behind = self._at_every(call, statement, made)
            between, once = [*between, *before], [*before, *behind]
            self._block = [*(each for each in self._block if each is not statement), *once]
        removed = [*self._of_scaler(), *self._clipping(between), *self._forgetting()]
        gone = {each.statement for each in removed}
        clips = [call for each in between for call in self._named(each, _CLIP)]
        return Update(
            statement=statement,
            optimizers=tuple(ordered),
            clip=clips[0] if clips else None,
            every=None if every is None else every.number,
            counter=None if every is None else every.counter,
            start=0 if every is None else every.start,
            once=tuple(each for each in once if each not in gone),
            removed=tuple(removed),
        )

    def _steps(self) -> Iterator[tuple[Statement, cst.Call, set[Thing]]]:
        """Statements that update, each with the call and the optimizers that it may be of."""
        for statement in self._block[self._index + 1 :]:
            if self._is_other_backward(statement):
                reason = "backward() is called several times for one update"
                raise StepError(
                    self._backward, f"{reason}: add the losses, and call backward() of the sum"
                )
            updates = list(self._updates(statement))
            yield from updates
            if updates and any(calls_of(each, "backward") for each in self._rest(statement)):
                return

    def _by_hand(self) -> Update | None:
        """The update that the program writes itself; None if there is none."""
        for statement in self._block[self._index + 1 :]:
            written = read_by_hand(statement)
            if written is None:
                continue
            models = self._things.of(self._source, written.model, Kind.MODEL)
            if not models:
                raise StepError(
                    written.model,
                    "the model whose parameters this updates was not found: make it in the "
                    "files that are ported",
                )
            between = self._block[self._index + 1 : self._block.index(statement)]
            clips = [call for each in between for call in self._named(each, _CLIP)]
            return Update(
                statement=statement,
                optimizers=tuple(sorted(models, key=_place)),
                by_hand=written,
                clip=clips[0] if clips else None,
                removed=(*self._clipping(between), *self._forgetting()),
            )
        return None

    def _forgetting(self) -> Iterator[Removed]:
        """Loops that forget gradients."""
        for statement in self._block:
            if forgets_all(statement):
                reason = "the call of the training model does this"
                yield Removed(statement=statement, code="ABP302", reason=reason)

    def _check_earlier(self) -> None:
        """Nothing may have been differentiated earlier in the same block."""
        for index, statement in enumerate(self._block[: self._index]):
            if is_call(statement) and self._is_other_backward(statement):
                updates = [self._updates(each) for each in self._block[index : self._index]]
                if any(list(each) for each in updates):
                    reason = (
                        "another update stands before this one in the same block, and a "
                        "compiled program makes one: put each, from the model to step(), into a "
                        "function of its own"
                    )
                else:
                    reason = "backward() is called several times for one update"
                raise StepError(self._backward, reason)

    def _rest(self, statement: Statement) -> Sequence[Statement]:
        return self._block[self._block.index(statement) + 1 :]

    def _is_other_backward(self, statement: Statement) -> bool:
        return any(call is not self._backward for call in calls_of(statement, "backward"))

    def _updates(self, statement: Statement) -> Iterator[tuple[Statement, cst.Call, set[Thing]]]:
        for call in calls_of(statement, "step"):
            assert isinstance(call.func, cst.Attribute)
            node = call.func.value
            if call.args and self._things.of(self._source, node, Kind.SCALER):
                node = call.args[0].value
            made = self._things.of(self._source, node, Kind.OPTIMIZER)
            if made:
                yield statement, call, made

    def _without(self) -> StepError:
        """Why there is no update."""
        function = self._source.enclosing(self._backward, cst.FunctionDef)
        for call in calls_of(self._source.module, "step"):
            if function is not None and any(
                m.matches(each.value, m.Name(function.name.value)) for each in call.args
            ):
                reason = (
                    "step() gets this function and calls it as often as it needs for one "
                    "update, and a compiled program evaluates the model once: call step() "
                    "without it"
                )
                return StepError(self._backward, reason)
        for statement in self._block[self._index + 1 :]:
            for call in calls_of(statement, "step"):
                return StepError(call, _UNKNOWN)
        return StepError(
            self._backward,
            "no step() of an optimizer follows in this block: call backward() and step() in "
            "one block",
        )

    def _check(self, call: cst.Call, statement: Statement, made: set[Thing]) -> None:
        of_scaler = bool(
            isinstance(call.func, cst.Attribute)
            and self._things.of(self._source, call.func.value, Kind.SCALER)
        )
        if call.args and not of_scaler:
            raise StepError(
                call,
                "step() with a closure evaluates the model as often as it needs for one update, "
                "and a compiled program does so once: call step() without a closure",
            )
        if not is_call(statement):
            self._every = self._read_every(call, statement)
        if any(each.name.endswith(".LBFGS") for each in made):
            raise StepError(
                call,
                "LBFGS evaluates the model as often as it needs for one update, and a compiled "
                "program does so once: use another optimizer, such as Adam",
            )
        if len(made) > 1 and len({self._variable(each) for each in made}) > 1:
            raise StepError(
                call,
                "which optimizer this is depends on who calls this function: write a function "
                "for each",
            )

    def _read_every(self, call: cst.Call, statement: Statement) -> Every:
        """After how many backwards a conditional update is made.

        Raises:
            StepError: its condition is none that says so, such as ``(i + 1) % k == 0``.
        """
        alone = isinstance(statement, cst.If) and statement.orelse is None
        if not isinstance(statement, cst.If) or not alone:
            raise StepError(call, _CONDITION)
        every = read_every(statement.test, self._loop)
        called = any(_calls(each, call) for each in _inner(statement))
        if every is None or not called:
            raise StepError(call, _CONDITION)
        return every

    def _at_every(
        self, call: cst.Call, statement: Statement, made: set[Thing]
    ) -> tuple[list[Statement], list[Statement]]:
        """What stands before a conditional update under its condition, and what after it.

        Raises:
            StepError: gradients are not forgotten after it.
        """
        statements = _inner(statement)
        at = next(i for i, each in enumerate(statements) if _calls(each, call))
        forgetting = [each for each in statements if self._forgets(each, made)]
        if not forgetting:
            raise StepError(
                call, "no zero_grad() follows the update under this condition: call it there"
            )
        if any(statements.index(each) < at for each in forgetting):
            raise StepError(
                call,
                "zero_grad() is called before the update and discards its gradients: call it "
                "after step()",
            )
        behind = [each for each in statements[at + 1 :] if each not in forgetting]
        return statements[:at], behind

    def _forgets(self, statement: Statement, made: set[Thing]) -> bool:
        """Whether a statement forgets the gradients of an optimizer, or of a model."""
        calls = calls_of(statement, "zero_grad")
        if calls and not is_call(statement):
            raise StepError(
                calls[0],
                "whether zero_grad() is called depends on a condition of its own: call it right "
                "after step()",
            )
        for call in calls:
            assert isinstance(call.func, cst.Attribute)
            things = self._things.of(self._source, call.func.value)
            if not things & made and not any(each.kind is Kind.MODEL for each in things):
                raise StepError(
                    call,
                    "this zero_grad() is not of the optimizer that updates in this step: call "
                    "it of that optimizer",
                )
        return bool(calls) or forgets_all(statement)

    def _variable(self, thing: Thing) -> object:
        """The variable that a thing is assigned to."""
        for each in thing.source.above(thing.made):
            if isinstance(each, cst.Assign):
                return self._things.variable(thing.source, each.targets[0].target)
        return thing

    def _of_scaler(self) -> Iterator[Removed]:
        """Statements that scale gradients back, or change the scale."""
        for statement in self._block:
            for name in ("update", "unscale_"):
                for call in calls_of(statement, name):
                    assert isinstance(call.func, cst.Attribute)
                    if not self._things.of(self._source, call.func.value, Kind.SCALER):
                        continue
                    if not is_call(statement):
                        raise StepError(
                            call,
                            "whether the scaler is updated depends on a condition: call its "
                            "update() in each turn of the loop",
                        )
                    yield Removed(
                        statement=statement,
                        code="ABP422",
                        reason="gradients are computed in float32 and need no scaling",
                    )

    def _named(self, statement: Statement, names: Sequence[str]) -> list[cst.Call]:
        return [
            call
            for call in findall(statement, m.Call())
            if isinstance(call, cst.Call) and self._source.imported(call.func) in names
        ]

    def _clipping(self, between: Sequence[Statement]) -> Iterator[Removed]:
        """Statements that limit gradients.

        Raises:
            StepError: by value, of a part of the parameters, or by another norm.
        """
        clips = 0
        for statement in between:
            for call in self._named(statement, _CLIP_VALUES):
                raise StepError(
                    call,
                    "this limits each value, and an optimizer of a compiled program limits "
                    "the norm of all gradients (max_grad_norm): use clip_grad_norm_",
                )
            for call in self._named(statement, _CLIP):
                clips += 1
                self._check_clip(call, statement, clips)
                yield Removed(
                    statement=statement,
                    code="ABP431",
                    reason="the optimizer limits the norm of all gradients: max_grad_norm",
                )

    def _check_clip(self, call: cst.Call, statement: Statement, count: int) -> None:
        norm = argument(call, "norm_type", 2)
        if norm is not None and not m.matches(
            norm, m.Integer("2") | m.Float("2.0") | m.Float("2.")
        ):
            raise StepError(
                call,
                "this limits another norm than the Euclidean one, which max_grad_norm limits: "
                "use norm_type=2",
            )
        if count > 1:
            raise StepError(
                call,
                "gradients are limited a second time here, and max_grad_norm is one limit for "
                "all: keep one of the calls",
            )
        if not is_call(statement):
            raise StepError(
                call,
                "this reads the norm of the gradients, which a compiled program keeps on its "
                "device: call clip_grad_norm_ in a statement of its own, and read the norm with "
                "opts.anchorTensor",
            )


def _place(thing: Thing) -> tuple[int, int]:
    return thing.source.position(thing.made)


def _calls(statement: Statement, call: cst.Call) -> bool:
    """Whether a statement is a call and nothing else."""
    return is_call(statement) and any(each is call for each in findall(statement, m.Call()))


def _inner(statement: Statement) -> list[Statement]:
    """The statements under a condition; none of another statement."""
    body = statement.body.body if isinstance(statement, cst.If) else ()
    return [
        each
        for each in body
        if isinstance(each, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    ]
