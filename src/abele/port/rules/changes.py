"""Changes during training: weights are copied to the device, anything else is refused.

A program is made of a model, a loss and constants as they are at its first call. Whatever the host
does to them later is not in the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import targets_of
from abele.port.analysis.flow import reads
from abele.port.analysis.host_writes import HostWrite, Part, family, host_writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.order import Order
from abele.port.analysis.scopes import Variable, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.slow_values import varies
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError
from abele.port.source import Source

_Function: TypeAlias = cst.FunctionDef | cst.Lambda

CODES = {
    "ABP707": "Weights that the script changes on the host are copied to the device.",
    "ABP611": "A compiled program keeps its model and loss as of its first call; these change "
    "later.",
    "ABP612": "Which weights are trained is decided when the program is compiled.",
    "ABP613": "A compiled program keeps its constants; this one changes between updates.",
    "ABP615": "The state of an optimizer, and the weights that it updates, are on the device.",
}

_SENT = "weights that the host changes are copied to the device, if a program is loaded there"
_REST = (
    "this changes a part of the model or of the loss between updates, and a compiled program "
    "keeps what it was at its first call: pass the value to forward as a tensor, or train with "
    "another optimizer and wrapper from here on"
)
_TRAINED = (
    "which weights are trained changes between updates, and a compiled program keeps those of "
    "its first call: make a new optimizer after this line, which gets a program of its own"
)
_OPTIMIZER = (
    "this changes the optimizer's state, or which weights it updates, between updates, and a "
    "compiled program has both on its device: make a new optimizer here, which gets a program "
    "of its own"
)
_CONSTANT = (
    "{name} changes between updates, and a compiled program keeps what it was at its first "
    "call: write {new} = torch.as_tensor(...) before the model is called, and use that"
)
_READ = (
    "{name} changes between updates, and a compiled program keeps what {function}() read in its "
    "first call: pass it to {function}() as an argument"
)
_LOSS = (
    "{name} is another loss from here on, and a compiled program keeps the first: compute both, "
    "and pass the weight of each as a tensor, or make a new optimizer after this line"
)


def apply(context: Context) -> None:
    """Look at what is changed between the updates of each step."""
    order = Order(context.things)
    writes = {
        source: list(host_writes(context.project, context.things, source))
        for source in context.project.sources
    }
    sent: set[tuple[str, cst.CSTNode]] = set()
    for step in context.steps:
        if step.optimizer not in context.training:
            continue
        losses = _losses(context, step)
        members = family(context.project, context.things, {*step.models})
        for source, each in ((at, write) for at, some in writes.items() for write in some):
            if _is_of_step(step, source, each) or not each.things & (members | losses):
                continue
            if each.part is Part.WEIGHTS and not each.things & losses:
                _send(context, order, step, source, each, sent)
            else:
                _refuse(context, order, step, source, each)
        for source, node in _of_optimizer(context, step):
            if order.between(
                (step.source, step.backward), (source, node), step.gradients.optimizers
            ):
                context.say(source, node, "ABP615", Verdict.BLOCKED, _OPTIMIZER)
        for source, node, text in (*_constants(context, step), *_read_inside(context, step)):
            if order.between(
                (step.source, step.backward), (source, node), step.gradients.optimizers
            ):
                context.say(source, node, "ABP613", Verdict.BLOCKED, text)


def _of_optimizer(context: Context, step: Step) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Where the state of an optimizer, or what it updates, is changed."""
    optimizers = {*step.gradients.optimizers}
    for source in context.project.sources:
        for call in findall(source.module, m.Call(func=m.Attribute())):
            func = cst.ensure_type(call.func, cst.Attribute)
            inner = func.value
            if (
                func.attr.value == "add_param_group"
                and optimizers & context.things.of(source, inner)
            ) or (
                func.attr.value in ("clear", "pop", "update")
                and isinstance(inner, cst.Attribute)
                and m.matches(inner, _STATE)
                and optimizers & context.things.of(source, inner.value)
            ):
                yield source, call
        for target in findall(source.module, m.AssignTarget()):
            part: cst.BaseExpression = target.target
            while isinstance(part, cst.Subscript):
                part = part.value
            if (
                isinstance(part, cst.Attribute)
                and m.matches(part, _STATE)
                and optimizers & context.things.of(source, part.value)
            ):
                yield source, target


_STATE = m.Attribute(attr=m.Name("state"))


def _losses(context: Context, step: Step) -> set[Thing]:
    """The losses that a step calls."""
    return {
        thing
        for statement in step.forward
        for node in findall(statement, m.Name() | m.Attribute())
        for thing in context.things.of(step.source, node, Kind.LOSS)
    } | {
        thing
        for statement in step.forward
        for call in findall(statement, m.Call())
        for thing in context.things.of(step.source, call.func)
        if thing.kind is Kind.MODEL and thing not in step.models
    }


def _is_of_step(step: Step, source: Source, write: HostWrite) -> bool:
    """Whether a change is the update itself."""
    gone = {*step.forward, *step.zero, step.update, step.backward}
    gone |= {each.statement for each in step.gradients.removed}
    return bool(gone & {write.node, write.statement, *source.above(write.node)})


def _send(
    context: Context,
    order: Order,
    step: Step,
    source: Source,
    write: HostWrite,
    sent: set[tuple[str, cst.CSTNode]],
) -> None:
    """Send weights to the device that the host has changed."""
    site = source, write.statement
    if not order.follows((step.source, step.backward), site, step.gradients.optimizers):
        return
    try:
        name = context.routes.name(context.training[step.optimizer], source, write.node)
    except NoRouteError as error:
        reason = (
            f"the training model cannot be reached here ({error}): call its "
            "copyWeightsToDevice() after this"
        )
        context.say(source, write.node, "ABP707", Verdict.MANUAL, reason)
        return
    if (name, write.statement) in sent:
        return
    sent.add((name, write.statement))
    there = f"{name}.isCompiled()"
    text = f"if {there}:\n    {name}.copyWeightsToDevice()"
    context.edits(source).after(write.statement, text)
    context.say(source, write.node, "ABP707", Verdict.MODIFIED, _SENT)


def _refuse(context: Context, order: Order, step: Step, source: Source, write: HostWrite) -> None:
    """Refuse what a program would not see."""
    once = step.source, step.backward
    if order.between(once, (source, write.node), step.gradients.optimizers):
        trained = write.part is Part.TRAINED
        code, reason = ("ABP612", _TRAINED) if trained else ("ABP611", _REST)
        context.say(source, write.node, code, Verdict.BLOCKED, reason)


def _constants(context: Context, step: Step) -> Iterator[tuple[Source, cst.CSTNode, str]]:
    """Where names get other values, or are changed in place, that a program has as constants."""
    fixed = {name for each in step.forward for name in reads(each)} - {*step.inputs, "self"}
    for name in sorted(fixed):
        node = cst.Name(name)
        variable = Variable(context.things.named(step.source, step.backward, name), name)
        things = {
            each
            for kind in Kind
            for each in context.things.all(kind)
            if name in context.things.names(variable.owner, each)
        }
        kinds = {each.kind for each in things}
        if not kinds <= {Kind.LOSS}:
            continue
        yield from _rebound(context, step, variable, kinds)
        if not kinds:
            yield from _in_place(context, step, variable, node)


def _read_inside(context: Context, step: Step) -> Iterator[tuple[Source, cst.CSTNode, str]]:
    """Where names and attributes change that functions called in a step read from around them."""
    functions = _functions(context, step)
    for function, (source, called) in functions.items():
        read = {*reads(function.body)} - {*_given(function), "self"}
        owners = {name: context.things.named(source, function.body, name) for name in read}
        outer = {name: owner for name, owner in owners.items() if owner is not function}
        own = _own_attributes(context, source, function)
        for node in findall(source.module, m.Assign() | m.AugAssign() | m.For() | m.Call()):
            bound = [node.target] if isinstance(node, cst.For) else targets_of(node)
            if isinstance(node, cst.Call):  # one in place, of what is no model or optimizer
                bound = [each for each in _targets(node) if not context.things.of(source, each)]
            if functions.keys() & {*source.above(node)} and not isinstance(node, cst.AugAssign):
                continue
            for target in _single(bound):
                root, part = _root(target)
                is_own = isinstance(target, cst.Attribute) and part in own
                if is_own or (
                    root is not None
                    and outer.get(root.value) is context.things.named(source, root, root.value)
                    and _is_read(function, root.value, part)
                ):
                    text = _READ.format(name=source.code(target), function=called)
                    yield source, target, text


def _is_read(function: _Function, name: str, part: str | None) -> bool:
    """Whether a function may read a part of what a name stands for; None is the whole of it."""
    used = findall(function.body, m.Attribute(value=m.Name(name)) | m.Subscript(m.Name(name)))
    parts = {_part(each) for each in used if isinstance(each, cst.Attribute | cst.Subscript)}
    return part is None or part in parts or None in parts


def _single(targets: Sequence[cst.BaseExpression]) -> Iterator[cst.BaseExpression]:
    """The targets of an assignment, without tuples around them."""
    for each in targets:
        if isinstance(each, cst.Tuple | cst.List):
            yield from _single([element.value for element in each.elements])
        else:
            yield each


def _given(function: _Function) -> Iterator[str]:
    """Parameters of a function."""
    if isinstance(function, cst.FunctionDef):
        return parameters(function)
    return iter([each.name.value for each in function.params.params])


def _own_attributes(context: Context, source: Source, function: _Function) -> set[str]:
    """The attributes that a method of a class other than a module reads, without known things."""
    cls = source.enclosing(function, cst.ClassDef)
    if cls is None or context.project.is_module(cls):
        return set()
    found = findall(function.body, m.Attribute(value=m.Name("self")))
    return {each.attr.value for each in found if not context.things.of(source, each)}


def _functions(context: Context, step: Step) -> dict[_Function, tuple[Source, str]]:
    """The functions that a step calls, also in others, and forwards, each with file and name."""
    found: dict[_Function, tuple[Source, str]] = {}
    rest: list[tuple[Source, cst.CSTNode]] = [(step.source, each) for each in step.forward]
    for source, function in context.project.functions():
        cls = source.enclosing(function, cst.ClassDef)
        if function.name.value == "forward" and cls and context.project.is_module(cls):
            found[function] = source, "forward"
            rest.append((source, function.body))
    while rest:
        at, piece = rest.pop()
        for call in findall(piece, m.Call()):
            for function, source in _called(context, at, call):
                if function not in found:
                    found[function] = source, at.code(call.func)
                    rest.append((source, function.body))
    return found


def _called(context: Context, at: Source, call: cst.Call) -> Iterator[tuple[_Function, Source]]:
    """Yield the functions that a call may run: a function, a named lambda, or ``__call__``."""
    function = context.things.function(at, call)
    if function is not None:
        if function.name.value != "__init__":
            yield function, context.things.file(function)
        return
    variable = context.things.variable(at, call.func)
    for source, node in context.things.assignments() if variable else ():
        if variable not in [context.things.variable(source, each.target) for each in node.targets]:
            continue
        if isinstance(node.value, cst.Lambda):
            yield node.value, source
        made = (
            context.things.function(source, node.value)
            if isinstance(node.value, cst.Call)
            else None
        )
        if made is not None and made.name.value == "__init__":
            where = context.things.file(made)
            cls = where.enclosing(made, cst.ClassDef)
            for each in findall(cls, m.FunctionDef(name=m.Name("__call__"))) if cls else ():
                yield each, where


def _rebound(
    context: Context, step: Step, variable: Variable, kinds: set[Kind]
) -> Iterator[tuple[Source, cst.CSTNode, str]]:
    """Assignments that give a loss's name another loss."""
    if not kinds:
        return
    assigns = [
        node
        for node in findall(step.source.module, m.Assign())
        if variable in [context.things.variable(step.source, each.target) for each in node.targets]
    ]
    for node in assigns:
        if len(assigns) > 1 or varies(step.source, node.value):
            yield step.source, node, _LOSS.format(name=variable.name)


def _in_place(
    context: Context, step: Step, variable: Variable, name: cst.Name
) -> Iterator[tuple[Source, cst.CSTNode, str]]:
    """Changes of a part of what a name stands for."""
    inside = {*step.forward}
    used = _parts(step, variable.name)
    for source in context.project.sources:
        if source is not step.source:
            continue
        for node in findall(source.module, m.Assign() | m.AugAssign() | m.Call()):
            if inside & {node, *source.above(node)}:
                continue
            for target in _targets(node):
                root, part = _root(target)
                if (
                    root is not None
                    and root.value == variable.name
                    and context.things.variable(source, root) == variable
                    and (part is None or not used or part in used)
                ):
                    code = source.code(target)
                    new = variable.name if part is None else part
                    yield source, node, _CONSTANT.format(name=code, new=new)


def _targets(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """What a piece changes in place."""
    if isinstance(node, cst.Call):
        changing = m.Attribute(attr=m.Name(m.MatchRegex(r"[a-z]\w*_|update|append|extend|clear")))
        return (
            [cst.ensure_type(node.func, cst.Attribute).value]
            if m.matches(node.func, changing)
            else []
        )
    return [each for each in targets_of(node) if isinstance(each, cst.Attribute | cst.Subscript)]


def _root(node: cst.BaseExpression) -> tuple[cst.Name | None, str | None]:
    """The name that an expression begins with, and the first part of it that is named."""
    part: str | None = None
    while isinstance(node, cst.Attribute | cst.Subscript):
        part = _part(node)
        node = node.value
    return (node, part) if isinstance(node, cst.Name) else (None, None)


def _part(node: cst.Attribute | cst.Subscript) -> str | None:
    """What a part is called: the attribute, or the text of an index."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    index = node.slice[0].slice
    if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
        return str(index.value.evaluated_value)
    return None


def _parts(step: Step, name: str) -> set[str]:
    """The parts of what a name stands for that a step reads; none if it reads the whole."""
    parts: set[str] = set()
    whole = 0
    for statement in step.forward:
        for node in findall(statement, m.Attribute() | m.Subscript()):
            if m.matches(node.value, m.Name(name)):
                part = _part(node)
                if part is not None:
                    parts.add(part)
                    whole -= 1
        whole += len(findall(statement, m.Name(name)))
    return parts if whole <= 0 else set()
