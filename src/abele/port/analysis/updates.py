"""Reads the statements after backward: the update, and what is done to gradients before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, StepError, calls_of, is_call
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.source import Source

_CLIP = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
_CLIP_VALUES = ("torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_value")
_CONDITION = (
    "the update depends on a condition, and a compiled program makes one in each call; where "
    "gradients of k batches are added up, by hand: divide no loss by k, set "
    "opts.Training.gradientAccumulation(k) and opts.outputMode(poptorch.OutputMode.All), take a "
    "poptorch.DataLoader with these options, which gives k batches at once, and leave out the "
    "condition"
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
_ANOTHER_BEFORE = (
    "another update stands before this one in the same block, and a compiled program makes one: "
    "put each, from the model to step(), into a function of its own"
)
_SEVERAL = (
    "backward() is called several times for one update: add the losses, and call backward() of "
    "the sum"
)
_CLOSURE = (
    "step() with a closure evaluates the model as often as it needs for one update, and a compiled "
    "program does so once: call step() without a closure, of another optimizer than LBFGS"
)
_NO_STEP = (
    "no step() of an optimizer follows in this block: call backward() and step() in one block"
)
_SOME_OPTIMIZER = (
    "which optimizer this is depends on who calls this function: write a function for each"
)
_VALUES = (
    "this limits each value, and an optimizer of a compiled program limits the norm of all "
    "gradients (max_grad_norm): use clip_grad_norm_"
)
_NORM = (
    "this limits another norm than the Euclidean one, which max_grad_norm limits: use norm_type=2"
)
_TWICE = (
    "gradients are limited a second time here, and max_grad_norm is one limit for all: keep one of "
    "the calls"
)
_READS_NORM = (
    "this reads the norm of the gradients, which a compiled program keeps on its device: call "
    "clip_grad_norm_ in a statement of its own, and read the norm with opts.anchorTensor"
)
_NO_MODEL = (
    "the model whose parameters this updates was not found: make it in the files that are ported"
)
_SCALER = (
    "whether the scaler is updated depends on a condition: call its update() in each turn of the "
    "loop"
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Removed:
    """A statement that a program does without.

    Attributes:
        statement: the statement.
        code: the code of its finding.
        reason: the reason that the finding gives.
    """

    statement: Statement
    code: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByHand:
    """A written-out update of stochastic gradient descent.

    Attributes:
        model: the expression whose parameters are updated.
        rate: by which gradients are multiplied.
        rounded: whether the product is rounded before it is added, as in ``p -= rate * p.grad``.
    """

    model: cst.BaseExpression
    rate: cst.BaseExpression
    rounded: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Update:
    """The update of parameters in a training step.

    Attributes:
        statement: that updates.
        optimizers: that may be the one; they share a name. The model, where none makes the update.
        by_hand: the update, where no optimizer makes it.
        clip: the call that limits the norm of gradients, or None.
        removed: other statements that the program does without.
    """

    statement: Statement
    optimizers: tuple[Thing, ...]
    by_hand: ByHand | None = None
    clip: cst.Call | None = None
    removed: tuple[Removed, ...] = ()


def read_update(
    source: Source, things: Things, block: Sequence[Statement], backward: cst.Call, index: int
) -> Update:
    """Return the update that follows a call of backward.

    Args:
        source: the file.
        things: the things that its names stand for.
        block: the statements among which the call is.
        backward: the call.
        index: the index of its statement in the block.

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

    def update(self) -> Update:
        steps = list(self._steps())
        self._check_earlier()
        by_hand = None if steps else self._by_hand()
        if by_hand is not None:
            return by_hand
        if not steps:
            raise self._without()
        if len({frozenset(things) for _, _, things in steps}) > 1:
            raise StepError(steps[1][1], _TWO_OPTIMIZERS)
        if len(steps) > 1:
            raise StepError(steps[1][1], _TWO_UPDATES)
        ((statement, call, made),) = steps
        self._check(call, statement, made)
        return self._made(statement, made, None)

    def _made(self, statement: Statement, made: set[Thing], by_hand: ByHand | None) -> Update:
        between = self._block[self._index + 1 : self._block.index(statement)]
        clips = [call for each in between for call in self._named(each, _CLIP)]
        return Update(
            statement=statement,
            optimizers=tuple(sorted(made, key=lambda each: each.source.position(each.made))),
            by_hand=by_hand,
            clip=clips[0] if clips else None,
            removed=(*self._of_scaler(), *self._clipping(between), *self._forgetting()),
        )

    def _steps(self) -> Iterator[tuple[Statement, cst.Call, set[Thing]]]:
        """Yield statements that update, each with the call and the optimizers it may be of."""
        for index, statement in enumerate(self._block):
            if index <= self._index:
                continue
            if self._is_other_backward(statement):
                raise StepError(self._backward, _SEVERAL)
            updates = list(self._updates(statement))
            yield from updates
            if updates and any(calls_of(each, "backward") for each in self._block[index + 1 :]):
                return

    def _by_hand(self) -> Update | None:
        """Return the update that the program writes itself, or None."""
        for statement in self._block[self._index + 1 :]:
            written = read_by_hand(statement)
            if written is None:
                continue
            models = self._things.of(self._source, written.model, Kind.MODEL)
            if not models:
                raise StepError(written.model, _NO_MODEL)
            return self._made(statement, models, written)
        return None

    def _forgetting(self) -> Iterator[Removed]:
        """Yield loops that forget gradients."""
        for statement in self._block:
            if forgets_all(statement):
                reason = "the call of the training model does this"
                yield Removed(statement=statement, code="ABP302", reason=reason)

    def _check_earlier(self) -> None:
        """Refuse a block in which something was differentiated earlier."""
        for index, statement in enumerate(self._block[: self._index]):
            if is_call(statement) and self._is_other_backward(statement):
                earlier = [[*self._updates(each)] for each in self._block[index : self._index]]
                raise StepError(self._backward, _ANOTHER_BEFORE if any(earlier) else _SEVERAL)

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
        """Return the error that says why there is no update."""
        function = self._source.enclosing(self._backward, cst.FunctionDef)
        for call in calls_of(self._source.module, "step"):
            if function is not None and any(
                m.matches(each.value, m.Name(function.name.value)) for each in call.args
            ):
                return StepError(self._backward, _CLOSURE)
        for statement in self._block[self._index + 1 :]:
            for call in calls_of(statement, "step"):
                return StepError(call, _UNKNOWN)
        return StepError(self._backward, _NO_STEP)

    def _check(self, call: cst.Call, statement: Statement, made: set[Thing]) -> None:
        of_scaler = isinstance(call.func, cst.Attribute) and self._things.of(
            self._source, call.func.value, Kind.SCALER
        )
        closure = bool(call.args) and not of_scaler
        if closure or any(each.name.endswith(".LBFGS") for each in made):
            raise StepError(call, _CLOSURE)
        if not is_call(statement):
            raise StepError(call, _CONDITION)
        if len(made) > 1 and len({self._variable(each) for each in made}) > 1:
            raise StepError(call, _SOME_OPTIMIZER)

    def _variable(self, thing: Thing) -> object:
        """Return the variable that a thing is assigned to."""
        assign = thing.source.enclosing(thing.made, cst.Assign)
        if assign is None:
            return thing
        return self._things.variable(thing.source, assign.targets[0].target)

    def _of_scaler(self) -> Iterator[Removed]:
        """Yield statements that scale gradients back, or change the scale."""
        reason = "gradients are computed in float32 and need no scaling"
        for statement in self._block:
            for call in (*calls_of(statement, "update"), *calls_of(statement, "unscale_")):
                assert isinstance(call.func, cst.Attribute)
                if not self._things.of(self._source, call.func.value, Kind.SCALER):
                    continue
                if not is_call(statement):
                    raise StepError(call, _SCALER)
                yield Removed(statement=statement, code="ABP422", reason=reason)

    def _named(self, statement: Statement, names: Sequence[str]) -> list[cst.Call]:
        calls = findall(statement, m.Call())
        return [call for call in calls if self._source.imported(call.func) in names]

    def _clipping(self, between: Sequence[Statement]) -> Iterator[Removed]:
        """Yield statements that limit the norm of gradients.

        Raises:
            StepError: they limit values, another norm, or twice, or read the norm.
        """
        reason = "the optimizer limits the norm of all gradients: max_grad_norm"
        clips = 0
        for statement in between:
            for call in self._named(statement, _CLIP_VALUES):
                raise StepError(call, _VALUES)
            for call in self._named(statement, _CLIP):
                clips += 1
                norm = argument(call, "norm_type", 2)
                two = m.Integer("2") | m.Float("2.0") | m.Float("2.")
                if norm is not None and not m.matches(norm, two):
                    raise StepError(call, _NORM)
                if clips > 1 or not is_call(statement):
                    raise StepError(call, _TWICE if clips > 1 else _READS_NORM)
                yield Removed(statement=statement, code="ABP431", reason=reason)


def is_forgotten(source: Source, things: Things, node: cst.CSTNode, trained: set[Thing]) -> bool:
    """Return whether zero_grad is called in each turn of the loop around a backward.

    Args:
        source: the file.
        things: the things that its names stand for.
        node: the call of backward.
        trained: the models and optimizers whose gradients are meant.
    """
    return _is_forgotten(source, things, node, trained, frozenset())


def _is_forgotten(
    source: Source,
    things: Things,
    node: cst.CSTNode,
    trained: set[Thing],
    seen: frozenset[cst.CSTNode],
) -> bool:
    for each in source.above(node):
        if isinstance(each, cst.IndentedBlock | cst.Module) and any(
            _forgets_in(source, things, statement, trained, seen) for statement in each.body
        ):
            return True
        if isinstance(each, cst.For | cst.While | cst.CompFor | cst.BaseComp):
            return False
        if isinstance(each, cst.FunctionDef):
            calls = {} if each in seen else things.calls(each)
            return bool(calls) and all(
                _is_forgotten(at, things, call, trained, seen | {each})
                for call, at in calls.items()
            )
    return False


def _forgets_in(
    source: Source,
    things: Things,
    statement: cst.CSTNode,
    trained: set[Thing],
    seen: frozenset[cst.CSTNode],
) -> bool:
    """Return whether a statement forgets gradients whenever it is run, there or in a function."""
    once = cst.For | cst.While | cst.If | cst.FunctionDef | cst.ClassDef | cst.Lambda
    if forgets_all(statement):
        return True
    for call in () if isinstance(statement, once) else findall(statement, m.Call()):
        if any(isinstance(each, once) for each in source.between(call, statement)):
            continue
        if m.matches(call.func, m.Attribute(attr=m.Name("zero_grad"))):
            known = things.of(source, call.func.value)
            if not known or known & trained:
                return True
        function = things.function(source, call)
        if function is not None and function not in seen:
            at = things.file(function)
            body = function.body.body
            if any(_forgets_in(at, things, each, trained, seen | {function}) for each in body):
                return True
    return any(map(_forgets, findall(statement, m.SimpleStatementLine())))


# -- updates written by hand: p.data.add_(p.grad, alpha=-rate) for each parameter ----------------

_GRADIENT = m.Attribute(attr=m.Name("grad")) | m.Attribute(
    value=m.Attribute(attr=m.Name("grad")), attr=m.Name("data")
)
_NO_GRAD = m.Attribute(attr=m.Name("no_grad")) | m.Name("no_grad")
_PARAMETERS = m.Call(func=m.Attribute(attr=m.Name("parameters")), args=[])


def read_by_hand(statement: cst.CSTNode) -> ByHand | None:
    """Return the update that a statement makes; None if it makes none of this shape."""
    loop = _loop(statement)
    if loop is None:
        return None
    name = cst.ensure_type(loop.target, cst.Name).value
    rates = [_rate(each, name) for each in loop.body.body if not _forgets(each)]
    if len(rates) != 1 or rates[0] is None:
        return None
    model = cst.ensure_type(cst.ensure_type(loop.iter, cst.Call).func, cst.Attribute).value
    product = m.BinaryOperation(operator=m.Multiply())
    rounded = any(findall(each, _GRADIENT) for each in findall(loop.body, product))
    return ByHand(model=model, rate=rates[0], rounded=rounded)


def forgets_all(statement: cst.CSTNode) -> bool:
    """Return whether a statement does nothing but forget the gradients of parameters."""
    loop = _loop(statement)
    return loop is not None and all(map(_forgets, loop.body.body))


def _forgets(statement: cst.CSTNode) -> bool:
    """Return whether a statement forgets the gradient of a parameter."""
    if isinstance(statement, cst.If) and statement.orelse is None:
        return bool(findall(statement.test, _GRADIENT)) and all(map(_forgets, statement.body.body))
    none = m.Assign(targets=[m.AssignTarget(_GRADIENT)], value=m.Name("None"))
    zero = m.Expr(m.Call(func=m.Attribute(value=_GRADIENT, attr=m.Name("zero_"))))
    return m.matches(statement, m.SimpleStatementLine(body=[none | zero]))


def _loop(statement: cst.CSTNode) -> cst.For | None:
    """Return the loop over a model's parameters that a statement is, also under no_grad()."""
    if isinstance(statement, cst.With) and m.matches(
        statement, m.With(items=[m.WithItem(item=m.Call(func=_NO_GRAD))])
    ):
        statement = statement.body.body[0] if len(statement.body.body) == 1 else statement
    of_parameters = m.For(target=m.Name(), iter=_PARAMETERS)
    return (
        statement
        if isinstance(statement, cst.For) and m.matches(statement, of_parameters)
        else None
    )


def _rate(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """Return the rate of an update of one parameter; None if it is another statement."""
    data = m.Name(name) | m.Attribute(value=m.Name(name), attr=m.Name("data"))
    subtracted = m.AugAssign(target=data, operator=m.SubtractAssign())
    method = m.Attribute(value=data, attr=m.Name("add_") | m.Name("sub_"))
    called = m.Expr(m.Call(func=method))
    one = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
    small = cst.ensure_type(statement, cst.SimpleStatementLine).body[0] if one else statement
    if isinstance(small, cst.AugAssign) and m.matches(small, subtracted):
        return _factor(small.value)
    if not isinstance(small, cst.Expr) or not m.matches(small, called):
        return None
    call = cst.ensure_type(small.value, cst.Call)
    alpha = argument(call, "alpha")
    values = [each.value for each in call.args if each.keyword is None]
    rate: cst.BaseExpression | None = None
    if len(values) == 2 and m.matches(values[1], _GRADIENT):  # of torch before 1.5
        rate = values[0]
    elif len(values) == 1 and alpha is not None:
        rate = alpha if m.matches(values[0], _GRADIENT) else None
    elif len(values) == 1:
        rate = _factor(values[0])
    subtracts = m.matches(call.func, m.Attribute(attr=m.Name("sub_")))
    return rate if subtracts else _negated(rate)


def _factor(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what a gradient is multiplied by."""
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply):
        for one, other in ((value.left, value.right), (value.right, value.left)):
            if m.matches(one, _GRADIENT) and not findall(other, _GRADIENT):
                return other
    return None


def _negated(rate: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """Return a rate without its minus; None if it has none, as such an update would ascend."""
    minus = isinstance(rate, cst.UnaryOperation) and isinstance(rate.operator, cst.Minus)
    return rate.expression if isinstance(rate, cst.UnaryOperation) and minus else None
