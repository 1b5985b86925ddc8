"""Changes during training: weights are copied to and from the device, anything else is refused.

A program is made of a model, a loss and constants as they are at its first call. Whatever the host
does to them later is not in the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.calls import targets_of
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.models import class_of
from abele.port.analysis.order import Order
from abele.port.analysis.parts import Statement, block_of, calls_of, statement_of
from abele.port.analysis.scopes import Variable, names_in
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.context import Context, NoRouteError
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.source import Source

_Function: TypeAlias = cst.FunctionDef | cst.Lambda
#: The parts of a variable that a step reads, by the function that reads them; None for the whole.
_Reads: TypeAlias = dict[Variable, dict[str | None, str]]

CODES = {
    "ABP707": "Weights that the script changes on the host are copied to the device.",
    "ABP611": "A compiled program keeps its model and loss as of its first call; these change "
    "later.",
    "ABP612": "Which weights are trained is decided when the program is compiled.",
    "ABP613": "A compiled program keeps its constants; this one changes between updates.",
    "ABP615": "The state of an optimizer, and the weights that it updates, are on the device.",
}

_SENT = "weights that the host changes are copied to the device, if a program is loaded there"
_LOADED = "weights that are loaded are copied to the device, if a program is loaded there"
_CHANGED = {
    "ABP611": (
        "this changes a part of the model or of the loss between updates, and a compiled program "
        "keeps what it was at its first call: pass the value to forward as a tensor, or train with "
        "another optimizer and wrapper from here on"
    ),
    "ABP612": (
        "which weights are trained changes between updates, and a compiled program keeps those of "
        "its first call: make a new optimizer after this line, which gets a program of its own"
    ),
    "ABP615": (
        "this changes the optimizer's state, or which weights it updates, between updates, and a "
        "compiled program has both on its device: make a new optimizer here, which gets a program "
        "of its own"
    ),
}
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
_GRADIENT = m.Attribute(attr=m.Name("grad"))
_STATE = m.Attribute(attr=m.Name("state"))
_WEIGHTS, _REST, _TRAINED = "ABP707", "ABP611", "ABP612"
_OF_WEIGHTS = ("parameters", "named_parameters", "buffers", "named_buffers")
_AS_BEFORE = ("__init__", "forward", "train", "eval", "state_dict", "parameters", "zero_grad")


def apply(context: Context) -> None:
    """Look at what is changed between the updates of each step."""
    writes = {source: list(_host_writes(context, source)) for source in context.project.sources}
    for step in context.steps:
        if step.optimizer not in context.training:
            continue
        losses, models = _losses(context, step), _family(context, {*step.models})
        for source, some in writes.items():
            for node, statement, code, things in some:
                if not things & (models | losses) or _is_of_step(step, source, node, statement):
                    continue
                if not _follows(context, step, source, statement):
                    continue
                if code == _WEIGHTS and not things & losses:
                    _send(context, step, source, node, statement, _WEIGHTS, _SENT)
                else:
                    code = _REST if code == _WEIGHTS else code
                    context.say(source, node, code, Verdict.BLOCKED, _CHANGED[code])
        for source, node in _of_optimizer(context, step):
            if _follows(context, step, source, node):
                context.say(source, node, "ABP615", Verdict.BLOCKED, _CHANGED["ABP615"])
        for source, node, text in _constants(context, step):
            context.say(source, node, "ABP613", Verdict.BLOCKED, text)


def _follows(context: Context, step: Step, source: Source, node: cst.CSTNode) -> bool:
    """Return whether a node may run after an update of a step."""
    return Order(context.things).follows((step.source, step.backward), (source, node))


def _is_of_step(step: Step, source: Source, node: cst.CSTNode, statement: Statement) -> bool:
    """Return whether a change is the update itself."""
    gone = {*step.forward, *step.zero, step.update, step.backward}
    gone |= {each.statement for each in step.gradients.removed}
    return bool(gone & {node, statement, *source.above(node)})


def _send(
    context: Context,
    step: Step,
    source: Source,
    node: cst.CSTNode,
    statement: Statement,
    code: str,
    reason: str,
) -> None:
    """Copy weights that the host has changed, or loaded, to the device.

    A training model that is made later takes the weights along.
    """
    if step.optimizer.source is source and step.optimizer.made in _after(source, statement):
        return
    try:
        name = context.routes.name(context.training[step.optimizer], source, node)
    except NoRouteError as error:
        reason = (
            f"the training model cannot be reached here ({error}): call its "
            "copyWeightsToDevice() after this"
        )
        context.say(source, node, code, Verdict.MANUAL, reason)
        return
    if (name, statement) not in context.once:
        context.once.add((name, statement))
        text = f"if {name}.isCompiled():\n    {name}.copyWeightsToDevice()"
        context.edits(source).after(statement, text)
        context.say(source, node, code, Verdict.MODIFIED, reason)


# -- models and losses that the host changes -----------------------------------------------------


def _host_writes(
    context: Context, source: Source
) -> Iterator[tuple[cst.CSTNode, Statement, str, set[Thing]]]:
    """Yield what a file changes of its models and losses on the host, with code and things."""
    for node in findall(source.module, m.Assign() | m.AugAssign() | m.Call()):
        for code, changed in _changed(context, source, node):
            things, loop, _ = _root(context, source, changed)
            if things:
                yield node, loop or statement_of(source, node), code, things


def _changed(
    context: Context, source: Source, node: cst.CSTNode
) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield a finding code and the changed object for each change that a node makes."""
    if isinstance(node, cst.Call):
        yield from _by_call(context, source, node)
        return
    for target in targets_of(node):
        if isinstance(target, cst.Attribute):
            name = target.attr.value
            is_self = m.matches(target.value, m.Name("self"))
            codes = {"requires_grad": _TRAINED, "data": _WEIGHTS}
            if name in codes or (name not in ("grad", "training") and not is_self):
                yield codes.get(name, _REST), target.value
        elif isinstance(target, cst.Subscript) and not findall(target.value, _GRADIENT):
            whole = _root(context, source, target.value)[2]
            by_name = whole or bool(findall(target.slice[0], m.SimpleString()))
            yield _REST if by_name else _WEIGHTS, target.value
        elif isinstance(node, cst.AugAssign) and _root(context, source, target)[1] is not None:
            yield _WEIGHTS, target


def _by_call(
    context: Context, source: Source, call: cst.Call
) -> Iterator[tuple[str, cst.BaseExpression]]:
    func, values = call.func, [each.value for each in call.args]
    name = source.imported(func)
    if name.startswith("torch.nn.init.") and values:
        yield _WEIGHTS, values[0]
    elif name.endswith(".vector_to_parameters") and len(values) > 1:
        yield _WEIGHTS, values[1]
    elif (name.startswith("torch.nn.utils.prune.") and values) or (
        m.matches(func, m.Name("setattr")) and len(values) == 3
    ):
        yield _REST, values[0]
    elif isinstance(func, cst.Attribute) and not name and not findall(func, _GRADIENT):
        method = func.attr.value
        if method == "requires_grad_":
            yield _TRAINED, func.value
        elif method == "reset_parameters" or (method == "apply" and _sets_weights(source, call)):
            yield _WEIGHTS, func.value
        elif method.endswith("_") and not method.endswith("__"):
            if not _root(context, source, func.value)[2]:
                yield _WEIGHTS, func.value
        elif method not in _AS_BEFORE:
            yield from ((code, func.value) for code in sorted(_inside(context, source, func)))


def _sets_weights(source: Source, call: cst.Call) -> bool:
    """Return whether a function that ``apply`` is given writes weights."""
    given = call.args[0].value if call.args else None
    body = given if isinstance(given, cst.Lambda) else None
    if isinstance(given, cst.Name):
        named = m.FunctionDef(name=m.Name(given.value))
        body = next(iter(findall(source.module, named)), None)
    return body is not None and any(
        each.attr.value.endswith("_") or each.attr.value in ("reset_parameters", "load_state_dict")
        for each in findall(body, m.Attribute())
    )


def _inside(context: Context, source: Source, func: cst.Attribute) -> set[str]:
    """Return the codes of what a method of a module changes of its object."""
    codes: set[str] = set()
    for thing in context.things.of(source, func.value):
        cls = class_of(context.project, thing)
        is_module = cls is not None and context.project.is_module(cls)
        method = context.project.method(cls, func.attr.value) if cls and is_module else None
        for node in findall(method.body, m.Assign() | m.AugAssign() | m.Call()) if method else ():
            called = node.func if isinstance(node, cst.Call) else None
            if isinstance(called, cst.Attribute) and _starts_with_self(called.value):
                name = called.attr.value
                if name.endswith("_") and not name.endswith("__"):
                    codes.add(_TRAINED if name == "requires_grad_" else _WEIGHTS)
            for target in targets_of(node):
                if isinstance(target, cst.Attribute) and _starts_with_self(target):
                    data = {"data": _WEIGHTS, "requires_grad": _TRAINED}
                    codes.add(data.get(target.attr.value, _REST))
    return codes


def _starts_with_self(node: cst.BaseExpression) -> bool:
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return m.matches(node, m.Name("self"))


def _root(
    context: Context, source: Source, node: cst.BaseExpression, depth: int = 4
) -> tuple[set[Thing], cst.For | None, bool]:
    """Return the models and losses that an expression is, or is a part of.

    Returns:
        Also the loop through their parts, if one binds the expression, and whether the expression
        is one of them as a whole.
    """
    things: set[Thing] = set()
    base, whole, first = node, False, True
    while True:
        if isinstance(base, cst.Name | cst.Attribute):
            known = context.things.of(source, base)
            things |= {each for each in known if each.kind in (Kind.MODEL, Kind.LOSS)}
            whole |= first and bool(things)
        if isinstance(base, cst.Attribute | cst.Subscript):
            base, first = base.value, False
        elif isinstance(base, cst.Call) and isinstance(base.func, cst.Attribute):
            base, first = base.func.value, False
        else:
            break
    if things or not isinstance(base, cst.Name) or not depth:
        return things, None, whole
    for loop in source.between(node, context.things.owner(source, node)):
        if isinstance(loop, cst.For) and base.value in names_in(loop.target):
            called = findall(loop.iter, m.Call(func=m.Attribute()))
            of_weights = any(each.func.attr.value in _OF_WEIGHTS for each in called)
            values = [each.func.value for each in called] or [loop.iter]
            through, target = loop.iter, loop.target
            if (
                isinstance(through, cst.Call)
                and m.matches(through.func, m.Name("zip"))
                and isinstance(target, cst.Tuple)
            ):
                pairs = zip(target.elements, through.args, strict=False)
                values = [each.value for at, each in pairs if base.value in names_in(at.value)]
            for each in values:
                things |= _root(context, source, each, depth - 1)[0]
            return things, loop, first and not of_weights
    function = source.enclosing(node, cst.FunctionDef)
    for call, caller in context.things.calls(function).items() if function else ():
        given = context.things.arguments(function, call).get(base.value) if function else None
        if given is not None:
            things |= _root(context, caller, given, depth - 1)[0]
    return things, None, first and bool(things)


def _family(context: Context, models: set[Thing]) -> set[Thing]:
    """Return some models with those that they are made of."""
    members = set(models)
    rest = [*models]
    while rest:
        model = rest.pop()
        made = model.made if isinstance(model.made, cst.Call) else None
        parts = {
            thing
            for each in (made.args if made else ())
            for node in (each.value, *findall(each.value, m.Name() | m.Call()))
            for thing in context.things.of(model.source, node, Kind.MODEL)
        }
        cls = class_of(context.project, model)
        if cls is not None:
            parts |= context.things.attributes(context.project.bases(cls)[-1])
        rest += parts - members
        members |= parts
    return members


def _losses(context: Context, step: Step) -> set[Thing]:
    """Return the losses, and models without weights, that a step calls."""
    things: set[Thing] = set()
    for statement in step.forward:
        for node in findall(statement, m.Name() | m.Attribute()):
            things |= context.things.of(step.source, node, Kind.LOSS)
        for call in findall(statement, m.Call()):
            things |= context.things.of(step.source, call.func, Kind.MODEL) - step.models.keys()
    return things


def _of_optimizer(context: Context, step: Step) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Yield where the state of an optimizer, or what it updates, is changed."""
    optimizers = {*step.gradients.optimizers}
    for source in context.project.sources:
        for call in findall(source.module, m.Call(func=m.Attribute())):
            inner, name = call.func.value, call.func.attr.value
            if (name == "add_param_group" and optimizers & context.things.of(source, inner)) or (
                name in ("clear", "pop", "update")
                and m.matches(inner, _STATE)
                and optimizers & context.things.of(source, inner.value)
            ):
                yield source, call
        for target in findall(source.module, m.AssignTarget()):
            part = target.target
            while isinstance(part, cst.Subscript):
                part = part.value
            state = part.value if isinstance(part, cst.Attribute) else part
            if m.matches(part, _STATE) and optimizers & context.things.of(source, state):
                yield source, target


# -- constants that a step, or functions that it calls, read -------------------------------------


def _constants(context: Context, step: Step) -> Iterator[tuple[Source, cst.CSTNode, str]]:
    """Yield where constants of a program get other values, or are changed in place."""
    functions = _functions(context, step)
    inner: _Reads = {}
    for function, (source, called) in functions.items():
        _note(context, source, function, [function.body], called, inner)
    own: _Reads = {}
    _note(context, step.source, None, step.forward, "", own)
    gone = {*step.forward, *functions}
    kinds = m.Assign() | m.AugAssign() | m.AnnAssign() | m.For() | m.Call()
    for source in context.project.sources:
        for node in findall(source.module, kinds):
            if gone & {node, *source.above(node)} and not isinstance(node, cst.AugAssign):
                continue
            for target in _targets(node):
                text = _text(context, step, source, node, target, own, inner)
                if text and _may_follow(context, step, source, target):
                    yield source, target, text


def _may_follow(context: Context, step: Step, source: Source, node: cst.CSTNode) -> bool:
    """Return whether a node may run after an update, or in a function that nothing here calls."""
    function = source.enclosing(node, cst.FunctionDef)
    unknown = function is not None and not context.things.calls(function)
    is_own = function is step.owner or (function is not None and function.name.value == "__init__")
    return (unknown and not is_own) or _follows(context, step, source, node)


def _text(
    context: Context,
    step: Step,
    source: Source,
    node: cst.CSTNode,
    target: cst.BaseExpression,
    own: _Reads,
    inner: _Reads,
) -> str:
    """Return what is said of a target that a step reads; empty if it reads none of it."""
    root, part = target, None
    while isinstance(root, cst.Attribute | cst.Subscript):
        if m.matches(root, m.Attribute(value=m.Name("self"))):
            break
        part, root = _part(root), root.value
    variable = context.things.variable(source, root)
    things = context.things.of(source, root)
    name = source.code(target)
    function = _method_reading(inner, part)
    if function:
        return _READ.format(name=name, function=function)
    if variable is None or any(each.kind not in (Kind.LOSS, Kind.OBJECT) for each in things):
        return ""
    rebound = part is None and not isinstance(node, cst.Call)
    if _reads_part(own.get(variable, {}), part):
        if any(each.kind is Kind.LOSS for each in things):
            other = rebound and _is_another(context, source, node, variable)
            return _LOSS.format(name=name) if other else ""
        if not rebound or variable.name.startswith("self."):
            return _CONSTANT.format(name=name, new=part or variable.name.removeprefix("self."))
    parts = inner.get(variable, {})
    if _reads_part(parts, part):
        return _READ.format(name=name, function=parts.get(part) or next(iter(parts.values())))
    return ""


def _method_reading(inner: _Reads, part: str | None) -> str:
    """Return the method of an object of the program that reads an attribute of some name."""
    for variable, parts in inner.items():
        if part is not None and variable.name == f"self.{part}":
            return next(iter(parts.values()))
    return ""


def _is_another(context: Context, source: Source, node: cst.CSTNode, variable: Variable) -> bool:
    """Return whether an assignment gives the name of a loss another one in a later turn."""
    loop = source.enclosing(node, cst.For, cst.While)
    changes = loop is not None and bool({*reads(node)} & {*writes(loop)})
    return changes or len([*context.things.given_to(variable)]) > 1


def _reads_part(parts: dict[str | None, str], part: str | None) -> bool:
    return bool(parts) and (part is None or part in parts or None in parts)


def _note(
    context: Context,
    source: Source,
    function: _Function | None,
    pieces: Iterable[cst.CSTNode],
    called: str,
    noted: _Reads,
) -> None:
    """Note the variables, and parts of them, that pieces read from outside of their function."""
    for piece in pieces:
        known = {*reads(piece)}
        cls = source.enclosing(piece, cst.ClassDef)
        in_module = function is not None and cls is not None and context.project.is_module(cls)
        for node in findall(piece, m.Name() | m.Attribute(value=m.Name("self"))):
            of_self = isinstance(node, cst.Attribute)
            if (of_self and in_module) or (not of_self and node.value not in known | {"self"}):
                continue
            around = source.parent(node)
            if isinstance(around, cst.Attribute) and around.attr is node:
                continue
            variable = context.things.variable(source, node)
            if variable is None or (function is not None and variable.owner is function):
                continue
            part = "" if isinstance(around, cst.Call) and around.func is node else None
            if isinstance(around, cst.Attribute | cst.Subscript) and around.value is node:
                part = _part(around)
            noted.setdefault(variable, {})[part] = called


def _targets(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what a node binds or changes in place, without tuples around it."""
    if isinstance(node, cst.Call):
        changing = m.Attribute(
            attr=m.Name(m.MatchRegex(r"[a-z]\w*_|update|append|extend|clear|pop"))
        )
        targets = (
            [node.func.value]
            if isinstance(node.func, cst.Attribute) and m.matches(node.func, changing)
            else []
        )
    else:
        bound = isinstance(node, cst.For | cst.AnnAssign)
        targets = [node.target] if bound else targets_of(node)
    while targets:
        each = targets.pop()
        if isinstance(each, cst.Tuple | cst.List):
            targets += [element.value for element in each.elements]
        else:
            yield each


def _part(node: cst.Attribute | cst.Subscript) -> str | None:
    """Return the attribute or text by which a part is read; None if it is another index."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    index = node.slice[0].slice
    if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
        return str(index.value.evaluated_value)
    return None


def _functions(context: Context, step: Step) -> dict[_Function, tuple[Source, str]]:
    """Return the functions that a step calls, also in others, and forwards, with file and name."""
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
    for source, made in context.things.given_to(variable) if variable else ():
        if isinstance(made, cst.Lambda):
            yield made, source
        cls = context.project.class_of(source, made.func) if isinstance(made, cst.Call) else None
        method = context.project.method(cls, "__call__") if cls else None
        if method is not None:
            yield method, context.things.file(method)


# -- checkpoints ---------------------------------------------------------------------------------

CHECKPOINT_CODES = {
    "ABP701": "Weights come back from the device by themselves when they are read.",
    "ABP702": (
        "The state of an optimizer of poptorch.optim comes back by itself; that of one of torch "
        "stays on the device."
    ),
    "ABP703": "A whole model is pickled, with weights that come back by themselves, or read.",
    "ABP704": "Nothing but tensors and numbers is read from a checkpoint, unless it asks for more.",
    "ABP705": "The state of a scaler has no use any longer.",
    "ABP706": "Weights that are loaded are sent to the device.",
    "ABP708": (
        "An optimizer of poptorch.optim loads what one of poptorch.optim has saved, and refuses "
        "the state that one of torch has saved."
    ),
}

_WHOLE = (
    "the plain model is pickled as before, with weights copied back from the device; a "
    "state_dict() could still be loaded after its class has changed"
)
_LOADED_WHOLE = "a whole model is loaded as before; wrap it to run it as a compiled program"
_OF_TORCH = (
    "the state of an optimizer of torch is on the device until the training model is destroyed; "
    "save training_model.state_dict() or use popdist.checkpoint.Checkpointer"
)
_OF_OTHERS = (
    "poptorch's optimizers refuse a state that an optimizer of torch has saved: {own}; to go on "
    "from a file of the original, load its weights alone, or keep torch.optim.{name}, which a "
    "training model here takes, too, and PopTorch on an IPU does not"
)
_OWN = "what the port saves is loaded"
_NOT_OWN = "this program saves none itself"


def apply_checkpoints(context: Context) -> None:
    """Look at what is saved and loaded."""
    trained = {thing for step in context.steps for thing in step.models}
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            name = source.imported(call.func)
            if name == "torch.save" and call.args:
                _saved(context, source, call)
            elif name == "torch.load":
                _loaded(context, source, call)
        for call in calls_of(source.module, "state_dict"):
            _state(context, source, call)
        for call in calls_of(source.module, "load_state_dict"):
            assert isinstance(call.func, cst.Attribute)
            models = context.things.of(source, call.func.value, Kind.MODEL) & trained
            _to_device(context, source, call, models)
            _load_state(context, source, call)


def _saved(context: Context, source: Source, call: cst.Call) -> None:
    if context.things.of(source, call.args[0].value, Kind.MODEL):
        context.say(source, call, "ABP703", Verdict.MATCH, _WHOLE)


def _loaded(context: Context, source: Source, call: cst.Call) -> None:
    """Load checkpoints with ``weights_only`` unless the program sets it."""
    only = argument(call, "weights_only")
    if only is not None and m.matches(only, m.Name("False")):
        context.say(source, call, "ABP703", Verdict.MATCH, _LOADED_WHOLE)
    if only is not None:
        return
    safe = keyword("weights_only", "True")
    context.edits(source).give(call, safe)
    reason = (
        "with weights_only=True only tensors and numbers are loaded, and no code of the file runs"
    )
    context.say(source, call, "ABP704", Verdict.MODIFIED, reason)


def _state(context: Context, source: Source, call: cst.Call) -> None:
    """Weights, and state of optimizers, that are read."""
    assert isinstance(call.func, cst.Attribute)
    for thing in context.things.of(source, call.func.value):
        if thing.kind is Kind.MODEL:
            reason = "weights are copied back from the device when they are read"
            context.say(source, call, "ABP701", Verdict.MATCH, reason)
        elif thing in context.training and thing.name.startswith("torch.optim."):
            if _becomes_poptorchs(thing):
                reason = (
                    "the state of poptorch's optimizers is copied back from the device when it "
                    "is read"
                )
                context.say(source, call, "ABP702", Verdict.MATCH, reason)
            else:
                context.say(source, call, "ABP702", Verdict.MANUAL, _OF_TORCH)
        elif thing.kind is Kind.SCALER:
            reason = "the scaler is no longer used; its state stays that of a new one"
            context.say(source, call, "ABP705", Verdict.MATCH, reason)


def _load_state(context: Context, source: Source, call: cst.Call) -> None:
    """State of an optimizer that is loaded, which may be that of a plain program."""
    assert isinstance(call.func, cst.Attribute)
    for thing in context.things.of(source, call.func.value, Kind.OPTIMIZER):
        if thing in context.training and _becomes_poptorchs(thing):
            own = any(
                thing in context.things.of(at, cst.ensure_type(each.func, cst.Attribute).value)
                for at in context.project.sources
                for each in calls_of(at.module, "state_dict")
            )
            name = thing.name.rpartition(".")[2]
            reason = _OF_OTHERS.format(own=_OWN if own else _NOT_OWN, name=name)
            verdict = Verdict.MATCH if own else Verdict.MANUAL
            context.say(source, call, "ABP708", verdict, reason)
            return


def _becomes_poptorchs(optimizer: Thing) -> bool:
    return optimizer.name.rpartition(".")[2] in ("SGD", "Adam", "AdamW", "RMSprop")


def _to_device(context: Context, source: Source, call: cst.Call, models: set[Thing]) -> None:
    """Send weights that are loaded after the training model may be on the device."""
    statement = statement_of(source, call)
    sent: set[object] = set()
    for step in context.steps:
        wrapped = context.training.get(step.optimizer)
        if wrapped is None or wrapped in sent or not models & step.models.keys():
            continue
        sent.add(wrapped)
        _send(context, step, source, call, statement, "ABP706", _LOADED)


def _after(source: Source, statement: cst.CSTNode) -> set[cst.CSTNode]:
    """Return the expressions evaluated after a statement, in its and outer blocks."""
    later: set[cst.CSTNode] = set()
    for each in (statement, *source.above(statement)):
        if isinstance(each, cst.FunctionDef):
            break
        inside = isinstance(source.parent(each), cst.IndentedBlock | cst.Module)  # no 'elif'
        if inside and isinstance(each, cst.SimpleStatementLine | cst.If | cst.With | cst.Try):
            block = block_of(source, each)
            index = block.index(each) if each in block else len(block)
            for other in block[index + 1 :]:
                later.update(findall(other, m.Call()))
    return later
