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
    """Return the expressions that an assignment assigns; none for other statements."""
    if isinstance(node, cst.Assign):
        return [each.target for each in node.targets]
    return [node.target] if isinstance(node, cst.AugAssign) else []


def innermost(call: cst.Call) -> cst.BaseExpression:
    """Return the innermost call of a chain of moves, such as ``Net().to(device)``."""
    while (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in SAME
        and isinstance(call.func.value, cst.Call)
    ):
        call = call.func.value
    return call


def copies(source: Source, value: cst.BaseExpression) -> bool:
    """Return whether an expression copies an object."""
    names = ("copy.copy", "copy.deepcopy")
    return isinstance(value, cst.Call) and source.imported(value.func) in names


def goes_through(name: str, call: cst.Call) -> bool:
    """Return whether a call iterates over its argument."""
    builtin = m.Name("enumerate") | m.Name("iter") | m.Name("reversed") | m.Name("list")
    return m.matches(call.func, builtin) or name.startswith(("tqdm.", "itertools."))


def goes_through_all(name: str, call: cst.Call) -> bool:
    """Return whether a call iterates over all of its arguments."""
    return m.matches(call.func, m.Name("zip")) or name in ("itertools.chain", "itertools.product")


def yields(function: cst.FunctionDef) -> bool:
    """Return whether a function is a generator."""
    return bool(findall(function.body, m.Yield()))


def models_updated(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the expressions whose parameters an optimizer's constructor receives."""
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
