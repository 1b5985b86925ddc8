"""Finds where forward needs values of tensors, which are not there when it is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port import tree
from abele.port.analysis.flow import writes
from abele.port.analysis.scopes import parameters
from abele.port.analysis.search import findall

#: Attributes and methods of a tensor that follow from its shape and type alone.
_KNOWN = frozenset(
    (
        "device",
        "dim",
        "dtype",
        "is_contiguous",
        "is_cuda",
        "is_floating_point",
        "layout",
        "ndim",
        "nelement",
        "numel",
        "requires_grad",
        "shape",
        "size",
        "stride",
        "type",
    )
)
_KNOWN_FUNCTIONS = frozenset(("hasattr", "isinstance", "len", "type", "callable"))
_PYTHON = frozenset(("item", "tolist", "numpy"))
_NUMBERS = frozenset(("int", "float", "bool"))
_RANDOM = m.OneOf(*map(m.Name, ("rand", "randn", "randint", "randperm", "bernoulli", "normal")))
_PLAIN = m.OneOf(*map(m.Name, ("int", "float", "bool", "str")))


def needed(forward: cst.FunctionDef) -> Iterator[tuple[cst.CSTNode, str]]:
    """Nodes of a forward that need values of tensors, each with the reason."""
    tensors = _tensors(forward)
    for call in findall(forward.body, m.Call()):
        assert isinstance(call, cst.Call)
        if m.matches(call.func, m.Attribute(attr=m.OneOf(*map(m.Name, sorted(_PYTHON))))):
            assert isinstance(call.func, cst.Attribute)
            if _depends(call.func.value, tensors):
                yield call, f"{call.func.attr.value}() in forward needs the value of a tensor"
        elif (
            isinstance(call.func, cst.Name)
            and call.func.value in _NUMBERS
            and call.args
            and _depends(call.args[0].value, tensors)
        ):
            yield call, f"{call.func.value}() in forward needs the value of a tensor"
    for node in findall(forward.body, m.If() | m.While() | m.IfExp()):
        assert isinstance(node, cst.If | cst.While | cst.IfExp)
        if not isinstance(node.test, cst.Name) and _depends(node.test, tensors):
            yield node.test, "which statements of forward run depends on the value of a tensor"


def _tensors(forward: cst.FunctionDef) -> set[str]:
    """Names in a forward that may be tensors: what it is given, and what follows from that."""
    names = dict.fromkeys(parameters(forward))
    tensors = set(names) - {"self"} - set(_plain(forward))
    while True:
        more = {
            name
            for node in findall(forward.body, m.Assign() | m.AugAssign() | m.For())
            if _depends(_value(node), tensors)
            for name in _bound(node)
        }
        if more <= tensors:
            return tensors
        tensors |= more


def _value(node: cst.CSTNode) -> cst.CSTNode:
    """The expression of which an assignment or loop binds the value."""
    assert isinstance(node, cst.Assign | cst.AugAssign | cst.For)
    return node.iter if isinstance(node, cst.For) else node.value


def _bound(node: cst.CSTNode) -> list[str]:
    return writes(
        node.with_changes(body=cst.IndentedBlock([])) if isinstance(node, cst.For) else node
    )


def _plain(forward: cst.FunctionDef) -> Iterator[str]:
    """Parameters whose default or annotation says that they are no tensors."""
    params = forward.params
    for each in (*params.params, *params.kwonly_params):
        default = each.default
        flag = default is not None and not m.matches(default, m.Name("None"))
        if flag or m.matches(each, m.Param(annotation=m.Annotation(_PLAIN))):
            yield each.name.value


def _depends(node: cst.CSTNode, tensors: set[str]) -> bool:
    """Whether the value of an expression follows from values of tensors."""
    visitor = _Values(tensors)
    tree.visit(node, visitor)
    return visitor.needed


class _Values(cst.CSTVisitor):
    """Looks for tensors outside of what only needs their shapes or identities."""

    def __init__(self, tensors: set[str]):
        self._tensors = tensors
        self.needed = False

    def visit_Name(self, node: cst.Name) -> None:
        self.needed |= node.value in self._tensors

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if node.attr.value not in _KNOWN:
            tree.visit(node.value, self)
        return False

    def visit_Call(self, node: cst.Call) -> bool:
        self.needed |= m.matches(node.func, m.Attribute(value=m.Name("torch"), attr=_RANDOM))
        return not (isinstance(node.func, cst.Name) and node.func.value in _KNOWN_FUNCTIONS)

    def visit_Comparison(self, node: cst.Comparison) -> bool:
        return not all(
            isinstance(each.operator, cst.Is | cst.IsNot | cst.In | cst.NotIn)
            for each in node.comparisons
        )

    def visit_Arg(self, node: cst.Arg) -> bool:
        tree.visit(node.value, self)
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False
