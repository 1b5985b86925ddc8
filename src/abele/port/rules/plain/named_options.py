"""Options that are named by text: in JSON, or by ``getattr``, one by one or from a dictionary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.analysis.written_values import values_of
from abele.port.source import Source

#: A member of an enumeration, as a text of options names it.
_MEMBER = re.compile(r"[A-Z]\w+\.\w+")
_ASKED = m.Call(func=m.Name("getattr"), args=[m.Arg(), m.Arg()])
_PAIR = m.Tuple(elements=[m.Element(m.Name()), m.Element(m.Name())])
_ITEMS = m.Call(func=m.Attribute(attr=m.Name("items")), args=[])


class Named(NamedTuple):
    """A place where text names options.

    Attributes:
        source: the file.
        node: the call of ``getattr``, or of ``from_json``.
        calls: the calls that it makes, each with the file of its arguments; None if the program
            alone knows them.
        statement: what goes with it: the call, or the loop that does nothing else.
    """

    source: Source
    node: cst.Call
    calls: list[tuple[Source, cst.Call]] | None
    statement: cst.CSTNode


def all_of(things: Things, source: Source) -> Iterator[tuple[set[Thing], Named]]:
    """The places of a file where text names options, each with the options."""
    for call in findall(source.module, m.Call()):
        assert isinstance(call, cst.Call)
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "from_json":
            options = things.of(source, func.value, Kind.OPTIONS)
            if options:
                yield options, _of_json(source, call, func.value)
        elif m.matches(call, _ASKED):
            options = things.of(source, call.args[0].value, Kind.OPTIONS)
            if options:
                yield options, _of_getattr(things, source, call)


def _of_json(source: Source, call: cst.Call, options: cst.BaseExpression) -> Named:
    """The options of a text that the program has as it is."""
    given = call.args[0].value if call.args else None
    entries: Any = None
    if isinstance(given, cst.SimpleString | cst.ConcatenatedString):
        try:
            entries = json.loads(str(given.evaluated_value))
        except ValueError:
            entries = None
    if not isinstance(entries, dict):
        return Named(source, call, None, call)
    name = source.code(options)
    texts = [
        f"{name}.{path}({_argument(value)})"
        for path, value in cast("dict[str, Any]", entries).items()
    ]
    made = [cst.ensure_type(cst.parse_expression(each), cst.Call) for each in texts]
    return Named(source, call, [(source, each) for each in made], call)


def _argument(value: Any) -> str:
    """A value of a text of options, as a call takes it: a list is several, a name is a member."""
    if isinstance(value, list):
        return ", ".join(map(_argument, cast("list[Any]", value)))
    is_member = isinstance(value, str) and _MEMBER.fullmatch(value)
    return f"poptorch.{value}" if is_member else repr(value)


def _of_getattr(things: Things, source: Source, asked: cst.Call) -> Named:
    """The options that ``getattr(options, name)(value)`` sets."""
    call, name = source.parent(asked), asked.args[1].value
    if not isinstance(call, cst.Call) or call.func is not asked:
        return Named(source, asked, None, asked)
    loop = source.enclosing(call, cst.For, cst.FunctionDef)
    if isinstance(name, cst.SimpleString):
        return Named(source, asked, [(source, _made(asked, name, call.args))], call)
    if not isinstance(loop, cst.For) or not isinstance(name, cst.Name):
        return Named(source, asked, None, call)
    turns = _turns(things, source, loop, name.value)
    if turns is None:
        return Named(source, asked, None, call)
    calls: list[tuple[Source, cst.Call]] = []
    for of_turn, key, variable, value in turns:
        args = _in_turn(call.args, variable, value)
        if args is None:
            return Named(source, asked, None, call)
        calls.append((of_turn, _made(asked, key, args)))
    alone = len(loop.body.body) == 1 and call in findall(loop.body.body[0], m.Call())
    return Named(source, asked, calls, loop if alone and loop.orelse is None else call)


_Turn = tuple[Source, cst.SimpleString, str, cst.BaseExpression]


def _turns(things: Things, source: Source, loop: cst.For, name: str) -> list[_Turn] | None:
    """Text and value of each turn of a loop through pairs that are written out."""
    if not m.matches(loop.target, _PAIR):
        return None
    first, second = (
        cst.ensure_type(each.value, cst.Name).value
        for each in cst.ensure_type(loop.target, cst.Tuple).elements
    )
    of_items = m.matches(loop.iter, _ITEMS)
    whole = loop.iter
    if of_items:
        whole = cst.ensure_type(cst.ensure_type(loop.iter, cst.Call).func, cst.Attribute).value
    values = values_of(things, source, whole)
    if name != first or len(values) != 1 or values[0].element is not None:
        return None
    pairs = _pairs(values[0].node)
    if pairs is None or of_items != isinstance(values[0].node, cst.Dict):
        return None
    return [(values[0].source, key, second, value) for key, value in pairs]


def _pairs(
    node: cst.BaseExpression,
) -> list[tuple[cst.SimpleString, cst.BaseExpression]] | None:
    """The entries of a dictionary, or the pairs of a list."""
    pairs: list[tuple[cst.SimpleString, cst.BaseExpression]] = []
    elements = node.elements if isinstance(node, cst.Dict | cst.List | cst.Tuple) else ()
    for each in elements:
        if isinstance(each, cst.DictElement):
            key, value = each.key, each.value
        elif isinstance(each.value, cst.Tuple) and len(each.value.elements) == 2:
            key, value = (element.value for element in each.value.elements)
        else:
            return None
        if not isinstance(key, cst.SimpleString):
            return None
        pairs.append((key, value))
    return pairs or None


def _in_turn(
    args: Sequence[cst.Arg], variable: str, value: cst.BaseExpression
) -> list[cst.Arg] | None:
    """The arguments of a call in one turn of a loop; None if they are not its variable alone."""
    if len(args) != 1 or not m.matches(args[0].value, m.Name(variable)):
        return None
    if args[0].star == "":
        return [cst.Arg(value)]
    if args[0].star == "*" and isinstance(value, cst.Tuple | cst.List):
        return [cst.Arg(each.value) for each in value.elements]
    return None


def _made(asked: cst.Call, name: cst.SimpleString, args: Sequence[cst.Arg]) -> cst.Call:
    """The call of an option by its name."""
    func = cst.Attribute(asked.args[0].value, cst.Name(str(name.evaluated_value)))
    return cst.Call(func, args)
