"""Handles changes during training: copies loaded weights to the device, reports other changes.

A program is compiled from a model, a loss and constants at its first call. Later changes on the
host have no effect on it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import Variable, names_in, parameters, reads, writes
from abele.port.analysis.kinds import Kind, Thing, targets_of
from abele.port.analysis.order import Order
from abele.port.analysis.parts import calls_of, statement_of
from abele.port.analysis.steps import Step
from abele.port.analysis.things import NoRouteError
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.optimizers import becomes_poptorchs
from abele.port.source import Source, findall

CODES = {
    "ABP707": "Weights that the script changes on the host have to be copied to the device.",
    "ABP611": "A compiled program keeps its model and loss as of its first call; these change "
    "later.",
    "ABP612": "Which weights are trained is decided when the program is compiled.",
    "ABP613": "A compiled program keeps its constants; this one changes between updates.",
    "ABP702": "The state of an optimizer of torch stays on the device.",
    "ABP706": "Weights that are loaded are sent to the device.",
    "ABP615": "The state of an optimizer, and the weights that it updates, are on the device.",
}

_LOADED = "weights that are loaded are copied to the device, if a program is loaded there"
_NOT_SENT = (
    "the training model cannot be reached here ({error}): call its copyWeightsToDevice() after this"
)
_WEIGHTS, _REST, _TRAINED, _STATE = "ABP707", "ABP611", "ABP612", "ABP615"
_CHANGED = {
    _WEIGHTS: (
        "this may change weights on the host between updates, and a compiled program has its own "
        "on the device: call copyWeightsToDevice() of the training model after it"
    ),
    _REST: (
        "this changes a part of the model or of the loss between updates, and a compiled program "
        "keeps what it was at its first call: pass the value to forward as a tensor, or train with "
        "another optimizer and wrapper from here on"
    ),
    _TRAINED: (
        "which weights are trained changes between updates, and a compiled program keeps those of "
        "its first call: make a new optimizer after this line, which gets a program of its own"
    ),
    _STATE: (
        "this changes the optimizer's state, or which weights it updates, between updates, and a "
        "compiled program has both on its device: make a new optimizer here, which gets a program "
        "of its own"
    ),
}
_CONSTANT = (
    "{name} changes between updates, and a compiled program keeps what the step, or a function "
    "that it calls, read in its first call: compute a tensor of it before the model is called, "
    "and use that, or pass it to the function as an argument"
)
_PART_OF_STATE = m.Attribute(attr=m.Name("state") | m.Name("add_param_group"))
#: Methods that change a list or a dictionary in place.
_IN_PLACE = m.Attribute(
    value=m.DoesNotMatch(m.Name("self")),
    attr=m.Name(m.MatchRegex("update|append|extend|clear|pop|[a-z]\\w*[^_]_")),
)


def apply(context: Context) -> None:
    """Copy loaded weights to the device, and report other changes between training updates."""
    order = Order(context.things)
    for source in context.project.sources:
        _checkpoints(context, source)
    for step in context.steps:
        if step.optimizer not in context.training:
            continue
        gone = {*step.forward, *step.zero, step.update, step.backward}
        gone |= {each.statement for each in step.gradients.removed}
        for source in context.project.sources:
            for node, code, text in _changes(context, step, source):
                if gone & {node, *source.above(node)}:
                    continue
                if not order.follows((step.source, step.backward), (source, node)):
                    continue
                verdict = Verdict.MANUAL if code == _WEIGHTS else Verdict.BLOCKED
                context.say(source, node, code, verdict, text)


def _changes(
    context: Context, step: Step, source: Source
) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Yield changes of models, losses and constants in a file: node, code and reason."""
    read = _read(context, step)
    for node in findall(source.module, m.Assign() | m.AugAssign() | m.For() | m.Call()):
        for target in _targets(source, node):
            code = _of_model(context, step, source, node, target)
            if code:
                yield node, code, _CHANGED[code]
            elif _conflicts(context, source, node, target, read):
                text = _CONSTANT.format(name=source.code(target))
                yield target, "ABP613", text
    for node in findall(source.module, _PART_OF_STATE):
        if context.things.of(source, node.value) & {*step.gradients.optimizers}:
            yield node, _STATE, _CHANGED[_STATE]


def _targets(source: Source, node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the expressions that a syntax node binds or changes in place, with tuples unpacked."""
    if isinstance(node, cst.Call):
        name, values = source.imported(node.func), [each.value for each in node.args]
        if name.startswith(("torch.nn.init.", "torch.nn.utils.prune.")):
            return values[:1]
        if name.endswith(".vector_to_parameters"):
            return values[1:2]
        in_place = isinstance(node.func, cst.Attribute) and m.matches(node.func, _IN_PLACE)
        return [node.func.value] if in_place and isinstance(node.func, cst.Attribute) else []
    rest = [node.target] if isinstance(node, cst.For) else targets_of(node)
    found: list[cst.BaseExpression] = []
    while rest:
        each = rest.pop()
        if isinstance(each, cst.Tuple | cst.List):
            rest += [element.value for element in each.elements]
        else:
            found.append(each)
    return found


# -- models, losses and their weights ------------------------------------------------------------


def _of_model(
    context: Context, step: Step, source: Source, node: cst.CSTNode, target: cst.BaseExpression
) -> str:
    """Return the code for a change of a step's model or loss; ``""`` for other changes."""
    called = node.func if isinstance(node, cst.Call) else target
    last = called.attr.value if isinstance(called, cst.Attribute) else ""
    if last in ("requires_grad", "requires_grad_"):
        return _TRAINED
    things = _root(context, source, target)
    of_gradient = bool(findall(target, m.Attribute(attr=m.Name("grad")))) or last == "training"
    bound = context.things.of(source, target) and source.imported(called) == ""
    rebound = isinstance(target, cst.Name) and isinstance(node, cst.Assign)
    if not things & _used(context, step) or of_gradient or bound or rebound:
        return ""
    if isinstance(node, cst.For):
        return ""
    weights = isinstance(node, cst.Call | cst.AugAssign) or last == "data"
    weights |= isinstance(target, cst.Subscript) and not findall(target, m.SimpleString())
    weights &= bool(things & step.models.keys()) and "prune" not in source.imported(called)
    return _WEIGHTS if weights else _REST


@functools.lru_cache(1)
def _used(context: Context, step: Step) -> set[Thing]:
    """Return the models and losses that a training step calls."""
    things = {*step.models}
    for statement in step.forward:
        for node in findall(statement, m.Name() | m.Attribute()):
            known = context.things.of(step.source, node)
            things |= {each for each in known if each.kind in (Kind.MODEL, Kind.LOSS)}
    return things


def _root(context: Context, source: Source, node: cst.BaseExpression) -> set[Thing]:
    """Return the models and losses that an expression is a part of."""
    base, things = node, set[Thing]()
    while True:
        things |= context.things.of(source, base)
        if isinstance(base, cst.Attribute | cst.Subscript):
            base = base.value
        elif isinstance(base, cst.Call) and isinstance(base.func, cst.Attribute):
            base = base.func.value
        else:
            break
    if things or not isinstance(base, cst.Name):
        return things
    for loop in source.between(node, context.things.owner(source, node)):
        if isinstance(loop, cst.For) and base.value in names_in(loop.target):
            inside = findall(_through(loop, base), m.Name() | m.Attribute())
            return {thing for each in inside for thing in context.things.of(source, each)}
    return set()


def _through(loop: cst.For, base: cst.Name) -> cst.BaseExpression:
    """Return the iterable of a loop for one of its variables, such as one argument of ``zip``."""
    value, target = loop.iter, loop.target
    if m.matches(value, m.Call(func=m.Name("zip"))) and isinstance(target, cst.Tuple):
        pairs = zip(target.elements, cst.ensure_type(value, cst.Call).args, strict=False)
        for element, each in pairs:
            if base.value in names_in(element.value):
                return each.value
    return value


def _send(context: Context, step: Step, source: Source, call: cst.Call) -> None:
    """Copy weights to the device after a call that loads them on the host.

    Nothing is added if the training model is created later.
    """
    statement, made = statement_of(source, call), step.optimizer
    owner = context.things.owner(source, call)
    same = made.source is source and context.things.owner(source, made.made) is owner
    if same and source.position(statement) < source.position(made.made):
        return
    try:
        name = context.routes.name(context.training[made], source, call)
    except NoRouteError as error:
        context.say(source, call, "ABP706", Verdict.MANUAL, _NOT_SENT.format(error=error))
        return
    if (name, statement) not in context.once:
        context.once.add((name, statement))
        text = f"if {name}.isCompiled():\n    {name}.copyWeightsToDevice()"
        context.edits(source).after(statement, text)
        context.say(source, call, "ABP706", Verdict.MODIFIED, _LOADED)


# -- constants that a step, or functions that it calls, read -------------------------------------

#: What a step reads: parts of variables, such as ``["share"]``, and whether a function does.
_Reads: TypeAlias = dict[Variable, set[tuple[str, bool]]]


@functools.lru_cache(1)
def _read(context: Context, step: Step) -> _Reads:
    """Return the variables and their parts that a training step and the functions it calls read."""
    found: _Reads = {}
    for source, piece in _pieces(context, step):
        own = piece in step.forward
        function = None if own else source.enclosing(piece, cst.FunctionDef, cst.Lambda)
        for node in findall(piece, m.Name() | m.Attribute(value=m.Name("self"))):
            variable = context.things.variable(source, node)
            if variable is None or variable.owner is function:
                continue
            if isinstance(function, cst.Lambda) and variable.name in parameters(function):
                continue
            if own and variable.name in step.inputs:
                continue
            whole, outer = node, source.parent(node)
            while isinstance(outer, cst.Attribute | cst.Subscript) and outer.value is whole:
                whole, outer = outer, source.parent(outer)
            part = source.code(whole).removeprefix(source.code(node))
            if isinstance(outer, cst.Call) and outer.func is whole:
                part = part.rpartition(".")[0] if part else "()"
            found.setdefault(variable, set()).add((part, not own))
    return found


def _pieces(context: Context, step: Step) -> list[tuple[Source, cst.CSTNode]]:
    """Return the code that a training step may run: its statements and functions it calls."""
    things = context.things
    pieces: list[tuple[Source, cst.CSTNode]] = [(step.source, each) for each in step.forward]
    for source, function in context.project.functions():
        if function.name.value in ("forward", "__call__"):
            pieces.append((source, function.body))
    for source, piece in pieces:
        for call in findall(piece, m.Call()):
            function, variable = things.function(source, call), things.variable(source, call.func)
            inner: list[tuple[Source, cst.CSTNode]] = [
                (at, made.body)
                for at, made in (things.given_to(variable) if variable else ())
                if isinstance(made, cst.Lambda)
            ]
            if function is not None and function.name.value != "__init__":
                inner.append((things.file(function), function.body))
            pieces += [each for each in inner if each not in pieces]
    return pieces


def _conflicts(
    context: Context, source: Source, node: cst.CSTNode, target: cst.BaseExpression, read: _Reads
) -> bool:
    """Return whether an assignment changes a variable, or part, that a training step reads."""
    root = target
    while isinstance(root, cst.Attribute | cst.Subscript):
        if m.matches(root, m.Attribute(value=m.Name("self"))):
            break
        root = root.value
    variable = context.things.variable(source, root)
    function = source.enclosing(node, cst.FunctionDef)
    own_call = function is not None and function.name.value in ("__init__", "forward", "__call__")
    if variable is None or own_call:
        return False
    part = source.code(target).removeprefix(source.code(root))
    own = f"self.{part[1:]}" if part.startswith(".") else ""
    if own and any(each.name == own for each in read):
        return True
    rebound = not part and isinstance(target, cst.Name) and not isinstance(node, cst.Call)
    if rebound and context.things.may_be(variable):
        return _is_another(context, source, node, variable, read)
    return any(
        (inner or not rebound) and (part.startswith(each) or each.startswith(part))
        for each, inner in read.get(variable, ())
    )


def _is_another(
    context: Context, source: Source, node: cst.CSTNode, variable: Variable, read: _Reads
) -> bool:
    """Return whether an assignment in a loop rebinds a loss's variable to another loss."""
    if variable not in read or any(
        each.kind is not Kind.LOSS for each in context.things.may_be(variable)
    ):
        return False
    loop = source.enclosing(node, cst.For, cst.While)
    changes = loop is not None and bool({*reads(node)} & {*writes(loop)})
    return changes or len([*context.things.given_to(variable)]) > 1


# -- checkpoints ---------------------------------------------------------------------------------

_OF_TORCH = (
    "the state of an optimizer of torch is on the device until the training model is destroyed; "
    "save training_model.state_dict() or use popdist.checkpoint.Checkpointer"
)


def _checkpoints(context: Context, source: Source) -> None:
    """Copy loaded weights to the device; report optimizer states that stay there."""
    trained = {thing for step in context.steps for thing in step.models}
    for call in calls_of(source.module, "state_dict"):
        for thing in context.things.of(source, cst.ensure_type(call.func, cst.Attribute).value):
            kept = thing.name.startswith("torch.optim.") and not becomes_poptorchs(thing)
            if thing in context.training and kept:
                context.say(source, call, "ABP702", Verdict.MANUAL, _OF_TORCH)
    for call in calls_of(source.module, "load_state_dict"):
        receiver = cst.ensure_type(call.func, cst.Attribute).value
        models = context.things.of(source, receiver, Kind.MODEL) & trained
        sent: set[object] = set()
        for step in context.steps:
            wrapped = context.training.get(step.optimizer)
            if wrapped is not None and wrapped not in sent and models & step.models.keys():
                sent.add(wrapped)
                _send(context, step, source, call)
