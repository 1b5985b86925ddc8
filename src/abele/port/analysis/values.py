"""Finds where forward needs values of tensors, which are not there when it is compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst
from libcst import matchers as m

from abele.port import tree
from abele.port.analysis.batches import argument
from abele.port.analysis.flow import changes, writes
from abele.port.analysis.scopes import names_in, parameters
from abele.port.analysis.search import findall
from abele.port.source import Source

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
_KNOWN_FUNCTIONS = frozenset(
    ("hasattr", "isinstance", "len", "type", "callable", "is_tensor", "is_floating_point", "numel")
)
_PYTHON = frozenset(("item", "tolist", "numpy"))
_NUMBERS = frozenset(("int", "float", "bool"))
_RANDOM = m.OneOf(*map(m.Name, ("rand", "randn", "randint", "randperm", "bernoulli", "normal")))
_APPEND = m.Call(func=m.Attribute(value=m.Name(), attr=m.Name("append")), args=[m.Arg()])
_BINDS = m.Assign() | m.AugAssign() | m.For() | m.CompFor() | _APPEND
_FUNCTIONS_THAT_COUNT = frozenset(
    f"torch.{each}" for each in ("masked_select", "nonzero", "unique", "unique_consecutive")
)
_READS = (
    "{name}() needs the value of a tensor, and a program is compiled before there are values: keep "
    "the tensor here, and call {name}() on what the step returns"
)
_DECIDES = (
    "which statements run here depends on the value of a tensor, and a program is compiled before "
    "there are values: compute both ways, and choose with torch.where"
)
_COUNTS = (
    "how many elements this returns depends on values of tensors, and a program has one shape: "
    "keep rows of one length, and a mask for what does not count"
)
_PLAIN = m.OneOf(*map(m.Name, ("int", "float", "bool", "str")))


def needed(
    source: Source, body: cst.CSTNode, given: Collection[str]
) -> Iterator[tuple[cst.CSTNode, str]]:
    """Nodes of a piece of a program that need values of tensors, each with the reason.

    Args:
        source: its file.
        body: the piece.
        given: names of it that are tensors from the start.
    """
    tensors = followed(body, given)
    for call in findall(body, m.Call()):
        assert isinstance(call, cst.Call)
        name = _read(call, tensors)
        if name:
            yield call, _READS.format(name=name)
        elif _counts(source, call, tensors):
            yield call, _COUNTS
    for node in findall(body, m.If() | m.While() | m.IfExp()):
        assert isinstance(node, cst.If | cst.While | cst.IfExp)
        if not isinstance(node.test, cst.Name) and depends(node.test, tensors):
            yield node.test, _DECIDES


def _read(call: cst.Call, tensors: set[str]) -> str:
    """What makes a Python number of a tensor in a call; ``""`` if nothing does."""
    if m.matches(call.func, m.Attribute(attr=m.OneOf(*map(m.Name, sorted(_PYTHON))))):
        assert isinstance(call.func, cst.Attribute)
        return call.func.attr.value if depends(call.func.value, tensors) else ""
    number = isinstance(call.func, cst.Name) and call.func.value in _NUMBERS and bool(call.args)
    if number and depends(call.args[0].value, tensors):
        return cst.ensure_type(call.func, cst.Name).value
    return ""


def _counts(source: Source, call: cst.Call, tensors: set[str]) -> bool:
    """Whether how many elements a call returns depends on values."""
    name = source.imported(call.func)
    if name.rpartition(".")[2] == "pack_padded_sequence":
        lengths = argument(call, "lengths", 1)
        return lengths is not None and depends(lengths, tensors)
    return name in _FUNCTIONS_THAT_COUNT and any(depends(each.value, tensors) for each in call.args)


def of_parameters(forward: cst.FunctionDef) -> set[str]:
    """Names of what a forward is given that may be tensors."""
    return {*parameters(forward)} - {"self"} - {*_plain(forward)}


def followed(body: cst.CSTNode, given: Collection[str]) -> set[str]:
    """Names in a piece that may be tensors: what it is given, and what follows from that.

    Args:
        body: the piece.
        given: names that are tensors from the start.
    """
    tensors = {*given}
    while True:
        more = {name for node in findall(body, _BINDS) for name in _bound(node, tensors)}
        if more <= tensors:
            return tensors
        tensors |= more


def _bound(node: cst.CSTNode, tensors: set[str]) -> Iterable[str]:
    """Names to which an assignment, a loop or append() gives tensors."""
    if isinstance(node, cst.Call):
        kept = cst.ensure_type(node.func, cst.Attribute).value
        return names_in(kept) if depends(node.args[0].value, tensors) else ()
    if isinstance(node, cst.For | cst.CompFor):
        return _unpacked(node.target, node.iter, tensors)
    assert isinstance(node, cst.Assign | cst.AugAssign)
    if isinstance(node, cst.Assign) and isinstance(node.value, cst.Tuple):
        return [n for each in node.targets for n in _unpacked(each.target, node.value, tensors)]
    return [*writes(node), *changes(node)] if depends(node.value, tensors) else ()


def _unpacked(
    target: cst.BaseExpression, value: cst.BaseExpression, tensors: set[str]
) -> Iterable[str]:
    """Names of a target that are given tensors: none that count, are keys, or are other parts."""
    names = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else []
    parts: list[cst.BaseExpression] = []
    if isinstance(value, cst.Call):
        if m.matches(value.func, m.Name("enumerate")) and len(names) == 2:
            return _unpacked(names[1], value.args[0].value, tensors)
        if m.matches(value.func, m.Attribute(attr=m.Name("items"))) and len(names) == 2:
            return names_in(names[1]) if depends(value, tensors) else ()
        if m.matches(value.func, m.Name("zip")):
            parts = [each.value for each in value.args]
    elif isinstance(value, cst.Tuple):
        parts = [each.value for each in value.elements]
    if names and len(parts) == len(names):
        pairs = zip(names, parts, strict=True)
        return [name for each, part in pairs for name in _unpacked(each, part, tensors)]
    return names_in(target) if depends(value, tensors) else ()


def _plain(forward: cst.FunctionDef) -> Iterator[str]:
    """Parameters whose default or annotation says that they are no tensors."""
    params = forward.params
    for each in (*params.params, *params.kwonly_params):
        default = each.default
        flag = default is not None and not m.matches(default, m.Name("None"))
        if flag or m.matches(each, m.Param(annotation=m.Annotation(_PLAIN))):
            yield each.name.value


def depends(node: cst.CSTNode, tensors: set[str]) -> bool:
    """Whether the value of an expression follows from values of tensors.

    Args:
        node: the expression.
        tensors: names that are tensors.
    """
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
        name = node.func
        if isinstance(name, cst.Attribute) and m.matches(name.value, m.Name("torch")):
            name = name.attr
        return not (isinstance(name, cst.Name) and name.value in _KNOWN_FUNCTIONS)

    def visit_Comparison(self, node: cst.Comparison) -> bool:
        if any(isinstance(each.comparator, cst.SimpleString) for each in node.comparisons):
            return False
        return not all(
            isinstance(each.operator, cst.Is | cst.IsNot | cst.In | cst.NotIn)
            for each in node.comparisons
        )

    def visit_Arg(self, node: cst.Arg) -> bool:
        tree.visit(node.value, self)
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False
