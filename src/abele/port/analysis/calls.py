"""Reads calls and displays: which of their parts they return."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.source import Source

#: Methods of a model that return the model.
SAME = frozenset(
    (
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "half",
        "float",
        "double",
        "bfloat16",
        "requires_grad_",
        "apply",
        "share_memory",
    )
)
#: Functions of a model that return one with the same parameters.
WRAPPERS = frozenset(
    (
        "torch.compile",
        "torch.jit.script",
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
    )
)


def targets_of(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """What an assignment gives a value; nothing for other pieces."""
    if isinstance(node, cst.Assign):
        return [each.target for each in node.targets]
    return [node.target] if isinstance(node, cst.AugAssign) else []


def innermost(call: cst.Call) -> cst.BaseExpression:
    """The call that makes what is only moved by those around it, such as ``Net().to(device)``."""
    while (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in SAME
        and isinstance(call.func.value, cst.Call)
    ):
        call = call.func.value
    return call


def copies(source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression is a copy of something."""
    names = ("copy.copy", "copy.deepcopy")
    return isinstance(value, cst.Call) and source.imported(value.func) in names


def goes_through(name: str, call: cst.Call) -> bool:
    """Whether a call gives what its argument gives, one after the other."""
    builtin = m.Name("enumerate") | m.Name("iter") | m.Name("reversed") | m.Name("list")
    return m.matches(call.func, builtin) or name.startswith(("tqdm.", "itertools."))


def goes_through_all(name: str, call: cst.Call) -> bool:
    """Whether a call gives what each of its arguments gives, together or one after the other."""
    return m.matches(call.func, m.Name("zip")) or name in ("itertools.chain", "itertools.product")


def yields(function: cst.FunctionDef) -> bool:
    """Whether a function gives one value after the other."""
    return bool(findall(function.body, m.Yield()))


def elements_of(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The values in the display of a dictionary, list or tuple, or in a comprehension."""
    if isinstance(value, cst.Dict):
        return [each.value for each in value.elements]
    if isinstance(value, cst.List | cst.Tuple):
        return [each.value for each in value.elements]
    if isinstance(value, cst.DictComp):
        return [value.value]
    return [value.elt] if isinstance(value, cst.ListComp) else []


def models_updated(call: cst.Call) -> list[cst.BaseExpression]:
    """The expressions of which an optimizer's constructor is given the parameters."""
    methods = m.Name("parameters") | m.Name("named_parameters")
    calls = findall(
        cst.Tuple([cst.Element(each.value) for each in call.args]),
        m.Call(func=m.Attribute(attr=methods)),
    )
    return [
        each.func.value
        for each in calls
        if isinstance(each, cst.Call) and isinstance(each.func, cst.Attribute)
    ]
