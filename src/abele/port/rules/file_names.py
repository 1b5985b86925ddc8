"""Puts the number of the instance into names of files that every instance writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.source import Source

_REASON = "each instance writes a file of its own, with its number in the name"
_FOLLOWS = "each instance reads the file that it has written, with its number in the name"
_INSTANCE = "popdist.getInstanceIndex()"
_PATHS = frozenset(
    ("os.path.join", "os.path.abspath", "os.fspath", "pathlib.Path", "pathlib.PurePath", "str")
)


def number_saved(
    context: Context, source: Source, call: cst.Call, path: cst.BaseExpression | None
) -> None:
    """Put the number of the instance into the name of a file that a call writes.

    Args:
        context: the program.
        source: the file.
        call: of ``torch.save``, or of ``open`` for writing.
        path: that it is given.
    """
    ends = [] if path is None else list(_ends(context, source, path, 0, 5))
    if not ends or not all(_numbered(at.code(node), node) for at, node in ends):
        context.say(
            source,
            call,
            "ABP807",
            Verdict.MANUAL,
            "each instance writes this file: put popdist.getInstanceIndex() into its name",
        )
        return
    for at, node in ends:
        _number(context, at, node)
        context.say(at, node, "ABP807", Verdict.MODIFIED, _REASON)


def follow_loaded(
    context: Context, source: Source, call: cst.Call, path: cst.BaseExpression | None
) -> None:
    """Have a call that reads a file read the one that this instance has written.

    Args:
        context: the program.
        source: the file.
        call: of ``torch.load``, or of ``open`` for reading.
        path: that it is given.
    """
    for at, node in () if path is None else _ends(context, source, path, 0, 5):
        if node in context.numbered:
            context.say(source, call, "ABP807", Verdict.MATCH, _FOLLOWS)
        elif at.code(node) in context.numbered.values():
            _number(context, at, node)
            context.say(at, node, "ABP807", Verdict.MODIFIED, _FOLLOWS)


def _number(context: Context, source: Source, node: cst.BaseExpression) -> None:
    if node in context.numbered:
        return
    code = source.code(node)
    context.numbered[node] = code
    context.edits(source).need("import popdist")
    context.edits(source).replace(node, _numbered(code, node))


def _numbered(code: str, node: cst.BaseExpression) -> str:
    """The text of a name with the instance before its ending; ``""`` if it has none."""
    if isinstance(node, cst.Call):
        literal: Any = cst.ensure_type(node.func, cst.Attribute).value
        text = _before_ending(cst.Module([]).code_for_node(literal), "{instance}")
        rest = ", ".join(cst.Module([]).code_for_node(each).rstrip(", ") for each in node.args)
        return text and f"{text}.format({rest}, instance={_INSTANCE})"
    if isinstance(node, cst.FormattedString):
        return _before_ending(code, f"{{{_INSTANCE}}}")
    if isinstance(node, cst.SimpleString) and not node.prefix and "{" not in code:
        return _before_ending(f"f{code}", f"{{{_INSTANCE}}}")
    return ""


def _before_ending(code: str, number: str) -> str:
    stem, dot, ending = code.rpartition(".")
    return f"{stem}-{number}{dot}{ending}" if dot and "}" not in ending else ""


def _ends(
    context: Context, source: Source, node: cst.BaseExpression, place: int, depth: int
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """The expressions that end a path, each with its file.

    Args:
        context: the program.
        source: the file.
        node: the path.
        place: of the path among several results.
        depth: how many more names and functions are followed.
    """
    if isinstance(node, cst.SimpleString | cst.FormattedString) or _is_format(node):
        yield source, node
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Divide):
        yield from _ends(context, source, node.right, 0, depth)
    elif isinstance(node, cst.Tuple) and place < len(node.elements):
        yield from _ends(context, source, node.elements[place].value, 0, depth)
    elif isinstance(node, cst.Call) and _path_function(source, node) and node.args:
        yield from _ends(context, source, node.args[-1].value, 0, depth)
    elif isinstance(node, cst.Call) and depth:
        yield from _returned(context, source, node, place, depth - 1)
    elif isinstance(node, cst.Name | cst.Attribute) and depth:
        yield from _assigned(context, source, node, depth - 1)


def _is_format(node: cst.CSTNode) -> bool:
    literal = m.Attribute(value=m.SimpleString(), attr=m.Name("format"))
    return m.matches(node, m.Call(func=literal))


def _path_function(source: Source, call: cst.Call) -> bool:
    return (source.imported(call.func) or source.code(call.func)) in _PATHS


def _returned(
    context: Context, source: Source, call: cst.Call, place: int, depth: int
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """What a function of the program returns."""
    function = context.things.function(source, call)
    for node in () if function is None else findall(function.body, m.Return()):
        assert isinstance(node, cst.Return)
        assert function is not None
        if node.value is not None:
            at = context.project.source(function)
            yield from _ends(context, at, node.value, place, depth)


def _assigned(
    context: Context, source: Source, node: cst.BaseExpression, depth: int
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """What a variable is assigned."""
    wanted = context.things.variable(source, node)
    for at in context.project.sources if wanted is not None else ():
        for assign in findall(at.module, m.Assign()):
            assert isinstance(assign, cst.Assign)
            target = assign.targets[0].target
            elements = (
                [each.value for each in target.elements] if isinstance(target, cst.Tuple) else []
            )
            for place, each in enumerate(elements or [target]):
                if context.things.variable(at, each) == wanted:
                    yield from _ends(context, at, assign.value, place, depth)
