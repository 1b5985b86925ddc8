"""Reads training models: what a call of one does, and the optimizer that it uses."""

from __future__ import annotations

import dataclasses
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.calls import models_updated
from abele.port.analysis.groups import sorted_models
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError, Wrapped
from abele.port.rules.plain import processes
from abele.port.rules.plain.returned import Loss, loss_of
from abele.port.rules.plain.settings import Batches, batches_of
from abele.port.source import Source

_DEFAULT = "torch.optim.SGD({model}.parameters(), lr=0.01)"  # that of poptorch.trainingModel
_PARALLEL = (
    "updates take the mean of the gradients of all processes, and weights start as those of the "
    "first, as in the program"
)
REASON = "the model itself; what its call did follows the call: gradients and update"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Trainer:
    """What a training model was.

    Attributes:
        thing: where it is made.
        loss: where its loss is among its results.
        batches: how a call divides its rows.
        optimizer: that updates, by where it is made or by its variable.
        limit: the limit of its gradients' norm; None if there is none.
        whole: whether the optimizer updates the model and nothing else.
    """

    thing: Thing
    loss: Loss
    batches: Batches
    optimizer: Thing | Wrapped
    limit: cst.BaseExpression | None
    whole: bool

    def optimizer_at(self, context: Context, source: Source, node: cst.CSTNode) -> str:
        """The name of its optimizer where a node is.

        Raises:
            StepError: it is not known there.
        """
        try:
            if isinstance(self.optimizer, Thing):
                return context.routes.name_of(self.optimizer, source, node)
            return context.routes.name(self.optimizer, source, node)
        except NoRouteError as error:
            raise StepError(node, f"the optimizer cannot be reached here: {error}") from error


def trainer(context: Context, thing: Thing) -> Trainer:
    """What a training model was; the model takes its place.

    Raises:
        StepError: it has no counterpart, or not enough is known.
    """
    made = thing.made
    assert isinstance(made, cst.Call)
    source = thing.source
    loss = loss_of(context, thing)
    batches = batches_of(context, source, made, 1)
    optimizer = argument(made, "optimizer", 2)
    model = argument(made, "model", 0)
    assert model is not None
    optimizers = (
        [] if optimizer is None else list(context.things.of(source, optimizer, Kind.OPTIMIZER))
    )
    limits = {_limit(each) for each in optimizers}
    if len({None if each is None else source.code(each) for each in limits}) > 1:
        raise StepError(
            made,
            "a condition decides which limit (max_grad_norm) its gradients have: use one for all",
        )
    result = Trainer(
        thing=thing,
        loss=loss,
        batches=batches,
        optimizer=_optimizer(context, source, made, model, optimizer, optimizers),
        limit=next(iter(limits), None),
        whole=all(_is_whole(context, each, source, model) for each in optimizers),
    )
    take_place(context, source, made, "ABP1101", REASON)
    if context.instances:
        name = processes.parallel(context, source)
        context.edits(source).change(made, lambda node: _given_to(name, node))
        context.say(source, made, "ABP1603", Verdict.MODIFIED, _PARALLEL)
    return result


def _given_to(name: str, model: cst.BaseExpression) -> cst.BaseExpression:
    return cst.Call(cst.Name(name), [cst.Arg(model)])


def take_place(context: Context, source: Source, made: cst.Call, code: str, reason: str) -> None:
    """The model takes the place of its wrapper."""
    index = next(
        index
        for index, each in enumerate(made.args)
        if each.keyword is None or each.keyword.value == "model"
    )
    context.treated |= {made.func, *(each for i, each in enumerate(made.args) if i != index)}
    context.edits(source).take_out(made, lambda node: _tight(node.args[index].value))
    context.edits(source).change(statement_of(source, made), _without_itself)
    context.say(source, made, code, Verdict.MODIFIED, reason)


def _without_itself(node: Any) -> Any:
    """A statement goes that gives an attribute its own value."""
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        (small,) = node.body
        code = cst.Module([]).code_for_node
        if isinstance(small, cst.Assign) and [code(e.target) for e in small.targets] == [
            code(small.value)
        ]:
            return cst.RemoveFromParent()
    return node


def _tight(value: cst.BaseExpression) -> cst.BaseExpression:
    """An expression that stood between parentheses; it keeps some where it has several lines."""
    several = "\n" in cst.Module([]).code_for_node(value)
    if several and not value.lpar and not isinstance(value, cst.Call):
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


def _optimizer(
    context: Context,
    source: Source,
    made: cst.Call,
    model: cst.BaseExpression,
    optimizer: cst.BaseExpression | None,
    known: list[Thing],
) -> Thing | Wrapped:
    """The optimizer of a training model, which gets a name if it has none."""
    if isinstance(optimizer, cst.Name | cst.Attribute):
        if known:
            return known[0]
        variable = context.things.variable(source, optimizer)
        if variable is not None:
            return Wrapped(variable.name, source, variable.owner)
        raise StepError(
            optimizer,
            "the line that makes its optimizer was not found: make it in the files that are ported",
        )
    statement = statement_of(source, made)
    prefix = "self." if findall(statement, m.AssignTarget(m.Attribute(m.Name("self")))) else ""
    owner = source.enclosing(made, cst.ClassDef) if prefix else None
    wrapped = Wrapped(
        prefix + context.name(source, "optimizer"),
        source,
        (owner and context.project.bases(owner)[-1]) or context.things.owner(source, made),
    )
    edits = context.edits(source)
    if optimizer is None:
        edits.need("import torch")
        name = _name_of(source, made, model)
        edits.after(statement, f"{wrapped.name} = {_DEFAULT.format(model=name)}")
    else:
        edits.before(statement, f"{wrapped.name} = {source.code(edits.applied(optimizer))}")
    return wrapped


def _name_of(source: Source, made: cst.Call, model: cst.BaseExpression) -> str:
    """A name of a model after it was wrapped.

    Raises:
        StepError: it has none.
    """
    if isinstance(model, cst.Name | cst.Attribute):
        return source.code(model)
    assign = source.parent(made)
    if isinstance(assign, cst.Assign) and isinstance(assign.targets[0].target, cst.Name):
        return assign.targets[0].target.value
    raise StepError(made, "its model is not assigned to a variable: do that before it is wrapped")


def _limit(optimizer: Thing) -> cst.BaseExpression | None:
    assert isinstance(optimizer.made, cst.Call)
    limit = argument(optimizer.made, "max_grad_norm")
    return None if limit is None or m.matches(limit, m.Name("None")) else limit


def _is_whole(
    context: Context, optimizer: Thing, source: Source, model: cst.BaseExpression
) -> bool:
    """Whether an optimizer is given all parameters of one model, which is all that is trained."""
    made = optimizer.made
    assert isinstance(made, cst.Call)
    if sorted_models(context.things, optimizer) & bases(context, source, model):
        return True
    updated = models_updated(made)
    if len(updated) != 1 or not m.matches(made.args[0].value, m.Call(m.Attribute())):
        return False
    (inner,) = updated
    things = context.things.of(optimizer.source, inner, Kind.MODEL)
    return bool(things & bases(context, source, model))


def bases(context: Context, source: Source, node: cst.BaseExpression) -> set[Thing]:
    """The models that an expression may be, wraps, or is made of."""
    models: set[Thing] = set()
    waiting = [(source, node)]
    while waiting:
        at, each = waiting.pop()
        for thing in context.things.of(at, each):
            kinds = (Kind.MODEL, Kind.TRAINING, Kind.INFERENCE)
            if thing.kind not in kinds or thing in models:
                continue
            models.add(thing)
            if isinstance(thing.made, cst.Call):
                waiting += [(thing.source, argument.value) for argument in thing.made.args]
    return models
