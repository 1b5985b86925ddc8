"""Finds a model's training or evaluation mode, its class, and whether it has weights."""

from __future__ import annotations

import re

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.order import Order
from abele.port.analysis.things import Things
from abele.port.project import Project
from abele.port.source import Source, findall

#: Words of a program in which a mode, or an average that training renews, matters.
_MATTERS = re.compile(
    r"[Dd]ropout|Norm\d?d?\b|register_buffer|\.training\b|[Rr]relu|RReLU|Transformer|track_running"
    r"|torchvision|timm|from_pretrained|hub\.load"
)
#: Makers of models that are perhaps in evaluation mode from the start.
_AS_STORED = re.compile(r"from_pretrained$|deepcopy$|^torch\.(load|hub\.load|jit\.load)$")
#: Other ways to set a mode than a plain call of ``train`` or ``eval``.
_ODD = re.compile(
    r"\.training\s*=[^=]|(get|set)attr\(.*\b(train|eval|training|phase|mode)\b"
    r"|Module\.(eval|train)\b"
)
#: Bases of objects that a program can return.
_TAKEN = ("tuple", "list", "dict", "OrderedDict", "NamedTuple", "ModelOutput")
_SETTING = m.Call(func=m.Attribute(attr=m.Name("train") | m.Name("eval")))
_PLAIN = m.Attribute(value=m.Name() | m.Attribute())
_ALONE = m.SimpleStatementLine(
    body=[m.Expr(m.Call(func=_PLAIN)) | m.Assign(value=m.Call(func=_PLAIN))]
)
_OWN = m.OneOf(*map(m.Name, ("Parameter", "register_buffer", "register_parameter")))
_ACTIVATIONS = ("Sigmoid", "Softmax", "LogSoftmax", "ReLU", "Tanh", "Identity", "Flatten")


def class_of(project: Project, model: Thing) -> cst.ClassDef | None:
    """Return the class that defines a model, or None if the program does not define it."""
    made = model.made.func if isinstance(model.made, cst.Call) else model.made
    return project.class_of(model.source, made)


# -- the mode, training or evaluation ------------------------------------------------------------


def mode_matters(project: Project, model: Thing) -> bool:
    """Return whether a model may compute different results in evaluation and training mode."""
    known = model.name.startswith("torch.nn.") or class_of(project, model) is not None
    return not known or any(_MATTERS.search(each.text) for each in project.sources)


def mode_at(
    project: Project, things: Things, model: Thing, source: Source, node: cst.CSTNode
) -> bool | None:
    """Return whether a model is in training mode at a syntax node; None if this is unknown.

    Only ``train()`` or ``eval()`` before the node in an enclosing block of its function counts, and
    only if no call between them may set another mode.
    """
    if any(_is_odd(project, things, each) for each in project.sources):
        return None
    owner, at, around = things.owner(source, node), source.position(node), {*source.above(node)}
    calls = [each for each in findall(owner, m.Call()) if things.owner(source, each) is owner]
    before = [
        each for each in calls if _sets(things, source, each, model) and source.position(each) < at
    ]
    statement = source.enclosing(before[-1], cst.SimpleStatementLine) if before else None
    if statement is None or source.parent(statement) not in around:
        return None
    last = before[-1]
    func = cst.ensure_type(last.func, cst.Attribute)
    if not m.matches(statement, _ALONE) or not things.of(source, func.value):
        return None
    start = source.position(statement)
    loops = around & {*findall(owner, m.For() | m.While())} - {*source.above(statement)}
    for each in calls:
        between = start < source.position(each) < at or loops & {*source.above(each)}
        if each is not last and between and _may_set(things, source, each, frozenset()):
            return None
    if last.args and not m.matches(last.args[0].value, m.Name("True") | m.Name("False")):
        return None
    on = not last.args or m.matches(last.args[0].value, m.Name("True"))
    return func.attr.value == "train" and on


def may_evaluate(
    project: Project, things: Things, model: Thing, source: Source, node: cst.CSTNode
) -> bool:
    """Return whether a model may be in evaluation mode when a training step runs."""
    if mode_at(project, things, model, source, node) is True:
        return False
    if _AS_STORED.search(model.name) or any(
        _is_odd(project, things, each) for each in project.sources
    ):
        return True
    order = Order(things)
    return any(
        m.matches(call.func, m.Attribute(attr=m.Name("eval"))) or bool(call.args)
        for at in project.sources
        for call in findall(at.module, _SETTING)
        if _sets(things, at, call, model)
        and not _is_put_back(things, at, call)
        and order.follows((at, call), (source, node))
    )


def _is_put_back(things: Things, source: Source, call: cst.Call) -> bool:
    """Return whether a call of ``eval()`` is followed by ``train()`` in the same function."""
    back = f"{source.code(cst.ensure_type(call.func, cst.Attribute).value)}.train()"
    return any(
        source.code(each) == back and source.position(each) > source.position(call)
        for each in findall(things.owner(source, call), _SETTING)
    )


def _sets(things: Things, source: Source, call: cst.Call, model: Thing) -> bool:
    """Return whether a call may set the training mode of a model or of a model that contains it."""
    if not m.matches(call, _SETTING):
        return False
    receiver = cst.ensure_type(call.func, cst.Attribute).value
    known = things.of(source, receiver)
    if any(each.kind is Kind.OBJECT for each in known) or source.imported(receiver):
        return False  # the method of a trainer, or a function of a module
    return (not known and len(call.args) < 2) or any(
        each is model or _is_made_with(things, each, model) for each in known
    )


def _is_made_with(things: Things, other: Thing, model: Thing) -> bool:
    """Return whether a model may be a layer of another model."""
    if not isinstance(other.made, cst.Call):
        return other.kind is Kind.MODEL
    inside = model.source.enclosing(model.made, cst.ClassDef) is not None
    return inside or any(model in things.of(other.source, each.value) for each in other.made.args)


def _may_set(
    things: Things, source: Source, call: cst.Call, seen: frozenset[cst.FunctionDef]
) -> bool:
    """Return whether a call may run ``train()`` or ``eval()``, directly or in a called function."""
    function = things.function(source, call)
    if m.matches(call, _SETTING) or function is None or function in seen:
        return m.matches(call, _SETTING)
    at, inner = things.file(function), findall(function.body, m.Call())
    return any(_may_set(things, at, each, seen | {function}) for each in inner)


def _is_odd(project: Project, things: Things, source: Source) -> bool:
    """Return whether a file sets training or evaluation mode other than by a direct call."""
    settings = findall(source.module, _SETTING)
    called = {each.func for each in settings}
    named = findall(source.module, m.Attribute(attr=m.Name("train") | m.Name("eval")))
    own = [
        source.enclosing(each, cst.ClassDef)
        for each in findall(source.module, m.FunctionDef(m.Name("train") | m.Name("eval")))
    ]
    return (
        bool(_ODD.search(source.text))
        or any(_is_run_by_others(project, source, each) for each in settings)
        or any(each not in called and things.of(source, each.value, Kind.MODEL) for each in named)
        or any(cls is not None and project.is_module(cls) for cls in own)
    )


def _is_run_by_others(project: Project, source: Source, call: cst.Call) -> bool:
    """Return whether a hook, a context manager or ``apply`` may execute a given call."""
    function = source.enclosing(call, cst.FunctionDef, cst.Lambda)
    if not isinstance(function, cst.FunctionDef):
        return function is not None
    name = function.name.value
    given = m.Arg(value=m.Name(name) | m.Attribute(value=m.Name("self"), attr=m.Name(name)))
    special = name.startswith("__") and name != "__init__"
    if special or findall(function.body, m.Yield()):
        return True
    return any(
        isinstance(each.value, cst.Attribute) or project.function(at, each.value) is function
        for at in project.sources
        for each in findall(at.module, given)
    )


def asks_for_its_mode(project: Project, model: Thing) -> bool:
    """Return whether the model's own class reads ``self.training``."""
    cls = class_of(project, model)
    mode = m.Attribute(value=m.Name("self"), attr=m.Name("training"))
    return cls is not None and any(findall(each, mode) for each in project.bases(cls))


# -- weights -------------------------------------------------------------------------------------


def class_returned(project: Project, model: Thing) -> str:
    """Return the class of the object that a model returns; empty if abele supports it."""
    cls = class_of(project, model)
    forward = None if cls is None else project.method(cls, "forward")
    if forward is None:
        return ""
    source = project.source(forward)
    for each in findall(forward, m.Return(value=m.Call())):
        returned = project.class_of(source, cst.ensure_type(each.value, cst.Call).func)
        if returned is None or project.is_module(returned):
            continue
        bases = [base.value for cls in project.bases(returned) for base in cls.bases]
        names = [project.source(returned).code(base).rpartition(".")[2] for base in bases]
        if not any(name in _TAKEN for name in names):
            return returned.name.value
    return ""


def is_weightless(project: Project, model: Thing) -> bool:
    """Return whether a module, such as a loss, creates no parameters."""
    cls = class_of(project, model)
    return cls is not None and not _has_weights(project, cls)


def _has_weights(project: Project, cls: cst.ClassDef) -> bool:
    source = project.source(cls)
    for call in findall(cls, m.Call()):
        name, own = source.imported(call.func), project.class_of(source, call.func)
        last = name.rpartition(".")[2]
        module = last[:1].isupper() and not name.startswith("torch.nn.functional.")
        if name and module and not last.endswith("Loss") and last not in _ACTIVATIONS:
            return True
        if own not in (None, cls) and project.is_module(own) and _has_weights(project, own):
            return True
    inherited = [each for each in project.bases(cls) if each is not cls]
    return bool(findall(cls, _OWN)) or any(_has_weights(project, each) for each in inherited)
