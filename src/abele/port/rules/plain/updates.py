"""Rewrites calls of a training model as what they did: zero_grad, backward and step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, StepError, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import functions, modes
from abele.port.rules.plain.gradients import is_without
from abele.port.rules.plain.latest import latest
from abele.port.rules.plain.returned import Loss
from abele.port.rules.plain.settings import require_known
from abele.port.rules.plain.trainers import Trainer, trainer
from abele.port.source import Source

CODES = {
    "ABP1101": (
        "A training model is the model itself. What its call did follows the call: zero_grad(), "
        "backward() and step()."
    ),
    "ABP1102": "The call of the model is one step: its loss is differentiated and applied.",
    "ABP1103": (
        "The call is one of a function of the file that makes the updates of one call, in the "
        "middle of an expression or with several batches."
    ),
    "ABP1109": "What this training model does in a call is not known.",
}

_STEP = "the loss of this call is differentiated and applied, as the program did"
_FUNCTION = "what one call of the program did, with all its batches, is a function"
#: What may be asked of a result that has a graph, with the same answer.
_SAFE = frozenset(("item", "detach", "tolist", "argmax", "argmin", "shape", "size", "dim"))
_CONDITIONAL = (
    *(cst.Lambda, cst.IfExp, cst.BooleanOperation, cst.ListComp, cst.SetComp, cst.DictComp),
    cst.GeneratorExp,
)


def apply(context: Context) -> None:
    """Rewrite every training model and its calls."""
    trainers: dict[Any, Trainer] = {}
    for thing in context.things.all(Kind.TRAINING):
        try:
            trainers[thing] = trainer(context, thing)
        except StepError as error:
            context.treated.add(thing.made)
            context.refuse(thing.source, error, "ABP1109")
    plain = {statement for step in context.steps for statement in step.forward}
    for source, call in _calls(context):
        if plain & {*source.above(call)}:
            continue  # a step of plain PyTorch, beside the one of the wrapper
        known = [trainers.get(each) for each in trained(context, source, call)]
        try:
            if len(known) > 1:
                raise StepError(call, "several training models may be called here; write a call "
                                "for each")  # fmt: skip
            if known[0] is not None:
                _rewrite(context, source, call, known[0])
        except StepError as error:
            context.refuse(source, error, "ABP1109")


def _calls(context: Context) -> Iterator[tuple[Source, cst.Call]]:
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            if trained(context, source, call):
                yield source, call


def trained(context: Context, source: Source, call: cst.Call) -> list[Thing]:
    """The training models that a call may be of."""
    things = latest(context, source, call.func, context.things.of(source, call.func))
    if any(each.kind is Kind.INFERENCE for each in things) and is_without(source, call):
        return []
    return [each for each in things if each.kind is Kind.TRAINING]


def _rewrite(context: Context, source: Source, call: cst.Call, made: Trainer) -> None:
    _require_own(context, source, call)
    optimizer = made.optimizer_at(context, source, call)
    statement = statement_of(source, call)
    simple = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
    always = not any(isinstance(each, _CONDITIONAL) for each in _between(source, call, statement))
    alone = sum(each in _inside(statement) for _, each in _calls(context)) == 1
    modes.set_before(context, source, call, statement, "train")
    scaled = context.instances and made.batches.is_sum
    plain = made.batches.one and not scaled and simple and always and alone
    if plain and _in_place(context, source, call, statement, made, optimizer):
        context.say(source, call, "ABP1102", Verdict.MODIFIED, _STEP)
        return
    require_known(context, made.batches, source, call)
    functions.call(context, source, call, made, optimizer)
    context.say(source, call, "ABP1103", Verdict.MODIFIED, _FUNCTION)


def _require_own(context: Context, source: Source, call: cst.Call) -> None:
    """Refuse a call among statements that differentiate by themselves, in a way that is not read.

    Raises:
        StepError: it is one.
    """
    for where, error in context.refused:
        block = where.enclosing(error.node, cst.IndentedBlock, cst.Module)
        if where is source and block is not None and block in source.above(call):
            raise StepError(
                error.node, f"this may be a step of the model or of its wrapper: {error}"
            )


def _between(source: Source, node: cst.CSTNode, end: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for each in source.above(node):
        if each is end:
            return
        yield each


def _inside(statement: cst.CSTNode) -> set[cst.CSTNode]:
    return set(findall(statement, m.Call()))


def _in_place(
    context: Context,
    source: Source,
    call: cst.Call,
    statement: Statement,
    made: Trainer,
    optimizer: str,
) -> bool:
    """Write the step around the statement of its call; False if a function has to do it."""
    small = cst.ensure_type(statement, cst.SimpleStatementLine).body[0]
    edits, loss = context.edits(source), made.loss
    zero, update = f"{optimizer}.zero_grad()\n", _update(source, made, optimizer, call)
    if isinstance(small, cst.Assign) and small.value is call and len(small.targets) == 1:
        name, later = _of_target(context, source, small.targets[0].target, loss, call)
        edits.before(statement, zero)
        edits.after(statement, f"{name}.backward()\n{update}{later}")
    elif isinstance(small, cst.Expr) and small.value is call:
        place = "" if loss.count == 1 else f"[{loss.place}]"
        edits.before(statement, zero)
        edits.change(call, lambda node: _followed(node, place))
        edits.after(statement, update)
    elif loss.count == 1:
        name, code = context.name(source, "loss"), source.code(edits.applied(call))
        around = source.parent(call)
        safe = isinstance(around, cst.Attribute) and around.attr.value in _SAFE
        edits.replace(call, name if safe else f"{name}.detach()")
        edits.before(statement, f"{zero}{name} = {code}\n{name}.backward()\n{update}")
    else:
        return False
    return True


def _followed(node: cst.Call, place: str) -> cst.BaseExpression:
    code = cst.Module([]).code_for_node(node)
    return cst.parse_expression(f"{code}{place}.backward()")


def _update(source: Source, made: Trainer, optimizer: str, call: cst.Call) -> str:
    """The limit of gradients, and the update."""
    limit = ""
    if made.limit is not None:
        limit = f"{functions.limited(made, source.code(call.func), optimizer)}\n"
    return f"{limit}{optimizer}.step()\n"


def _of_target(
    context: Context, source: Source, target: cst.BaseExpression, loss: Loss, call: cst.Call
) -> tuple[str, str]:
    """The loss, by its name, and a statement that has results forget how they were computed."""
    if not isinstance(target, cst.Tuple):
        name = source.code(target)
        if loss.count == 1:
            return name, _detached(context, source, [target], 0, call)
        if not _kept(context, source, target, call):
            return loss.of(name), ""
        return loss.of(name), f"{name} = {functions.detached(context, source)}({name})\n"
    elements = [each.value for each in target.elements]
    if len(elements) != loss.count or any(isinstance(e, cst.StarredElement) for e in elements):
        raise StepError(
            call, f"the model returns {loss.count} results, and this assigns {len(elements)}"
        )
    element = elements[loss.place]
    if m.matches(element, m.Name("_")):
        name = context.name(source, "loss")
        context.edits(source).replace(element, name)
        return name, _detached(context, source, elements, loss.place, call)
    return source.code(element), _detached(context, source, elements, loss.place, call)


def _detached(
    context: Context,
    source: Source,
    targets: Sequence[cst.BaseExpression],
    place: int,
    call: cst.Call,
) -> str:
    """A statement after which results have no graph, as those of a program; ``""`` if none has to.

    The loss is a tensor; another result may be several.
    """
    names: list[str] = []
    values: list[str] = []
    for index, each in enumerate(targets):
        if _kept(context, source, each, call):
            name = source.code(each)
            names.append(name)
            if index == place:
                values.append(f"{name}.detach()")
            else:
                values.append(f"{functions.detached(context, source)}({name})")
    return f"{', '.join(names)} = {', '.join(values)}\n" if names else ""


def _kept(context: Context, source: Source, target: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether a result is used in a way that its graph would change, or keep in memory."""
    if not isinstance(target, cst.Name):
        return True
    owner = context.things.owner(source, call)
    return any(
        isinstance(node, cst.Name)
        and context.things.named(source, node, target.value) is owner
        and not _is_harmless(source, node)
        for node in findall(owner, m.Name(target.value))
    )


def _is_harmless(source: Source, node: cst.Name) -> bool:
    """Whether a name is written, is no variable, or is asked for what has no graph."""
    parent = source.parent(node)
    if isinstance(parent, cst.Attribute):
        return parent.attr is node or parent.attr.value in _SAFE
    if isinstance(parent, cst.Param) or (isinstance(parent, cst.Arg) and parent.keyword is node):
        return True
    child: cst.CSTNode = node
    for each in source.above(node):
        if isinstance(each, cst.AssignTarget):
            return True
        if isinstance(each, cst.For):
            return each.target is child
        if not isinstance(each, cst.Element | cst.Tuple):
            return False
        child = each
    return False
