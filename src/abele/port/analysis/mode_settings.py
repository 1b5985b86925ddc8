"""Finds what sets the mode of a model: ``eval()``, ``train()``, and other ways to write them."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import copies, innermost
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.source import Source

EITHER = frozenset((True, False))
TRAINING, EVALUATING = frozenset((True,)), frozenset((False,))

_METHOD = m.Attribute(attr=m.Name("train") | m.Name("eval"))
_GETATTR = m.Call(func=m.Name("getattr"), args=[m.Arg(), m.Arg(), m.ZeroOrMore()])
_SETATTR = m.Call(func=m.Name("setattr"), args=[m.Arg(), m.Arg(), m.Arg()])
_FLAG = m.Attribute(attr=m.Name("training"))
_UNBOUND = {"torch.nn.Module.train": TRAINING, "torch.nn.Module.eval": EVALUATING}
#: Whose from_pretrained() returns models that are evaluating.
_EVALUATING = ("transformers.", "diffusers.", "peft.", "huggingface_hub.")
_AS_STORED = re.compile(r"torch\.(jit\.)?load$|copy\.(deep)?copy$")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A piece of a program that sets a mode.

    Attributes:
        node: the piece.
        model: the expression whose mode it sets.
        modes: one of which it sets: True for training.
        whole: it always sets the mode, and that of all layers.
        condition: the condition that says which mode; None where it is known or set in another way.
    """

    node: cst.CSTNode
    model: cst.BaseExpression
    modes: frozenset[bool]
    whole: bool = True
    condition: cst.BaseExpression | None = None


def first_mode(name: str) -> frozenset[bool]:
    """The modes in which a model may be when it has been made by what has a full name."""
    if name.endswith(".from_pretrained"):
        return EVALUATING if name.startswith(_EVALUATING) else EITHER
    return EITHER if _AS_STORED.match(name) else TRAINING


def settings_in(source: Source, things: Things, node: cst.CSTNode) -> list[Setting]:
    """What sets a mode in a piece, in the order of the text, also in functions in it."""
    settings: list[Setting] = []
    for each in findall(node, m.Call() | m.Assign() | m.AnnAssign() | m.AugAssign()):
        setting = setting_of(source, things, each)
        if setting is not None:
            settings.append(setting)
    return settings


def setting_of(source: Source, things: Things, node: cst.CSTNode) -> Setting | None:
    """What a call or an assignment sets; None if no mode."""
    if isinstance(node, cst.Assign):
        for each in node.targets:
            if m.matches(each.target, _FLAG):
                return _flag(node, each.target, node.value)
    elif isinstance(node, cst.AnnAssign | cst.AugAssign):
        if m.matches(node.target, _FLAG) and node.value is not None:
            return _flag(node, node.target, node.value)
    elif isinstance(node, cst.Call):
        return _by_call(source, things, node)
    return None


def mentioned(source: Source) -> Iterator[Setting]:
    """Methods that are taken and not called here, as in ``f = model.eval``."""
    for node in findall(source.module, m.Attribute() | _GETATTR):
        above = source.parent(node)
        if isinstance(above, cst.Call) and above.func is node:
            continue
        if m.matches(node, _METHOD):
            yield Setting(node, node.value, _BY_NAME[node.attr.value])
        elif isinstance(node, cst.Call):
            modes = _in_text(node.args[1].value)
            if modes:
                yield Setting(node, node.args[0].value, modes)


_BY_NAME = {"train": EITHER, "eval": EVALUATING}  # train() may be given a value


def _flag(node: cst.CSTNode, target: cst.BaseExpression, value: cst.BaseExpression) -> Setting:
    """``model.training = value``, which leaves its layers as they are."""
    return Setting(node, cst.ensure_type(target, cst.Attribute).value, _truth(value), whole=False)


def _by_call(source: Source, things: Things, call: cst.Call) -> Setting | None:
    func = call.func
    if isinstance(func, cst.Attribute):
        unbound = source.imported(func)
        if unbound in _UNBOUND and call.args:
            modes = _UNBOUND[unbound] if len(call.args) == 1 else _truth(call.args[1].value)
            return Setting(call, call.args[0].value, modes)
        if m.matches(func, _METHOD) and _is_new_copy(source, func.value):
            return None  # the mode of another object, which has no name yet
        if m.matches(func, _METHOD):
            condition = call.args[0].value if func.attr.value == "train" and call.args else None
            return Setting(
                call, func.value, _mode_of_call(func.attr.value, call), condition=condition
            )
        if func.attr.value == "apply" and len(call.args) == 1:
            return _applied(source, things, call, func.value, call.args[0].value)
    if m.matches(func, _GETATTR):
        name = cst.ensure_type(func, cst.Call).args[1].value
        model = cst.ensure_type(func, cst.Call).args[0].value
        if isinstance(name, cst.SimpleString) and name.evaluated_value in _BY_NAME:
            return Setting(call, model, _mode_of_call(str(name.evaluated_value), call))
        unknown = not isinstance(name, cst.SimpleString) and not call.args
        modes = _in_text(name) or (EITHER if unknown else frozenset())
        return Setting(call, model, modes, whole=False) if modes else None
    if m.matches(call, _SETATTR):
        name = call.args[1].value
        if isinstance(name, cst.SimpleString) and name.evaluated_value == "training":
            return Setting(call, call.args[0].value, _truth(call.args[2].value), whole=False)
    return None


def _is_new_copy(source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression is a copy that is made in it."""
    return isinstance(value, cst.Call) and copies(source, innermost(value))


def _applied(
    source: Source,
    things: Things,
    call: cst.Call,
    model: cst.BaseExpression,
    function: cst.BaseExpression,
) -> Setting | None:
    """``model.apply(function)``, which is called with each layer and then with the model."""
    unbound = source.imported(function)
    if unbound in _UNBOUND:
        return Setting(call, model, _UNBOUND[unbound])
    if isinstance(function, cst.Lambda):
        inside, body = settings_in(source, things, function.body), function.body
    else:
        body = things.function(source, cst.Call(function)) or _named(source, function)
        inside = [] if body is None else settings_in(source, things, body)
    if not inside:
        return None
    modes = frozenset[bool]().union(*(each.modes for each in inside))
    return Setting(call, model, modes, whole=inside[-1].node is body and inside[-1].whole)


def _named(source: Source, function: cst.BaseExpression) -> cst.FunctionDef | None:
    """A function of the file that has a name."""
    if not isinstance(function, cst.Name):
        return None
    same = m.FunctionDef(name=m.Name(function.value))
    return next(iter(findall(source.module, same)), None)


def _mode_of_call(name: str, call: cst.Call) -> frozenset[bool]:
    """The mode that a call of ``train`` or ``eval`` sets."""
    if name == "eval":
        return EVALUATING
    return _truth(call.args[0].value) if call.args else TRAINING


def _truth(value: cst.BaseExpression) -> frozenset[bool]:
    if isinstance(value, cst.Name) and value.value in ("True", "False"):
        return frozenset((value.value == "True",))
    return EITHER


def _in_text(name: cst.BaseExpression) -> frozenset[bool]:
    """The modes of methods that an expression may name."""
    texts = [each.evaluated_value for each in findall(name, m.SimpleString())]
    modes = [_BY_NAME[text] for text in texts if text in _BY_NAME]
    return frozenset(itertools.chain(*modes))
