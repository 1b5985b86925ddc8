"""Lays out the arguments of a call whose arguments have changed, as the others were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from abele.port.source import Source

_Item = TypeVar("_Item", cst.Arg, cst.Param)
_Node = TypeVar("_Node")
#: Lengths of lines that programs agree on.
_WIDTHS = (79, 88, 100, 120)
_NONE = cst.SimpleWhitespace("")
_SPACE = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_INDENTED = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
_AS_STATEMENT = cst.ParenthesizedWhitespace(indent=True)


def laid_out(
    source: Source, original: cst.Call, call: cst.Call, arguments: Sequence[cst.Arg]
) -> cst.Call:
    """Return a call with other arguments in the original's line layout.

    Where a call had one argument in each line, or a comma after the last one, it has so again. A
    call of one line that gets longer than the lines of its file is divided.

    Args:
        source: the file.
        original: the call, as a node of the file.
        call: the same with its inner changes made.
        arguments: all that it is to have.
    """
    if not arguments or not call.args:
        return call.with_changes(args=arguments)
    between = _between(call.args, call.whitespace_before_args)
    new = call.with_changes(args=_spaced(call.args, arguments, between, "whitespace_after_arg"))
    return _divided(source, original, new) if _is_long(source, original, new) else new


def with_one_more(params: Sequence[cst.Param], new: cst.Param) -> list[cst.Param]:
    """Parameters of a function with one more at their end, in lines as they are.

    Args:
        params: the others.
        new: the new one.
    """
    between = _between(params, _INDENTED)
    return _spaced(params, [*params, new], between, "whitespace_after_param") if params else [new]


def _spaced(
    old: Sequence[_Item], items: Sequence[_Item], between: cst.Comma, behind: str
) -> list[_Item]:
    """Items with what stands between them, and at their end what stood there.

    Args:
        old: those that there were.
        items: those that there are to be.
        between: what stands between two of them.
        behind: the name of the white space behind one.
    """
    *first, end = items
    spaced = [_followed(each, between, behind, is_last=each is old[-1]) for each in first]
    if end is not old[-1]:
        space = _without_comment(getattr(old[-1], behind))
        end = end.with_changes(comma=_without_comment(old[-1].comma), **{behind: space})
    return [*spaced, end]


def _between(items: Sequence[_Item], before: cst.BaseParenthesizableWhitespace) -> cst.Comma:
    """Return the separator of items: a new line if all have one.

    Args:
        items: arguments or parameters.
        before: the white space before the first.
    """
    commas = [each.comma for each in items[:-1] if isinstance(each.comma, cst.Comma)]
    if commas:
        alone = all(_breaks(each.whitespace_after) for each in commas)
        return _without_comment(commas[0]) if alone else _SPACE
    trailing = items[-1].comma if items else None
    alone = isinstance(trailing, cst.Comma) and _breaks(trailing.whitespace_after)
    return cst.Comma(whitespace_after=before) if alone and _breaks(before) else _SPACE


def _followed(item: _Item, between: cst.Comma, behind: str, *, is_last: bool) -> _Item:
    """Return an item with a comma, keeping its trailing comment.

    Args:
        item: an argument or a parameter.
        between: what stands between two of them.
        behind: the name of the white space behind one.
        is_last: whether none followed before.
    """
    comma = item.comma
    if isinstance(comma, cst.Comma) and not is_last:
        return item
    space = comma.whitespace_after if isinstance(comma, cst.Comma) else getattr(item, behind)
    if isinstance(space, cst.ParenthesizedWhitespace) and (
        space.first_line.comment is not None or space.empty_lines
    ):
        line = _INDENTED.last_line
        if isinstance(between.whitespace_after, cst.ParenthesizedWhitespace):
            line = between.whitespace_after.last_line
        between = between.with_changes(
            whitespace_after=space.with_changes(indent=True, last_line=line)
        )
    return item.with_changes(comma=between, **{behind: _NONE})


def _without_comment(node: _Node) -> _Node:
    """Return a comma or white space without its comments."""
    if isinstance(node, cst.Comma):
        return node.with_changes(whitespace_after=_without_comment(node.whitespace_after))
    if isinstance(node, cst.ParenthesizedWhitespace):
        return node.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return node


def _breaks(space: cst.BaseParenthesizableWhitespace) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace)


# -- calls of one line that get too long -------------------------------------------------------


def _is_long(source: Source, original: cst.Call, call: cst.Call) -> bool:
    """Return whether a divisible call has a line that is too long for the file.

    It can if it begins in the first line of its statement, and not in a string.
    """
    kinds = cst.BaseSmallStatement, cst.BaseCompoundStatement
    statement = source.enclosing(original, *kinds)
    in_text = source.enclosing(original, cst.FormattedString) is not None
    line, _ = source.position(original)
    if statement is None or in_text or source.position(statement)[0] != line:
        return False
    text, old = source.whole_line(line), source.code(original)
    if "\n" in source.code(call):
        return _is_in_own_line(call) and _indent(text) + len(_inner(source, call)) > width(source)
    return old in text and len(text) - len(old) + len(source.code(call)) > width(source)


def _is_in_own_line(call: cst.Call) -> bool:
    """Return whether all arguments share a line of their own."""
    commas = [each.comma for each in call.args[:-1] if isinstance(each.comma, cst.Comma)]
    together = not any(_breaks(each.whitespace_after) for each in commas)
    return together and _breaks(call.whitespace_before_args)


def _divided(source: Source, original: cst.Call, call: cst.Call) -> cst.Call:
    """Lay out arguments on their own line, or one per line if too long."""
    text = source.whole_line(source.position(original)[0])
    *first, last = call.args
    if _indent(text) + len(_inner(source, call)) <= width(source):
        end = last.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_AS_STATEMENT)
        return call.with_changes(whitespace_before_args=_INDENTED, args=[*first, end])
    comma = cst.Comma(whitespace_after=_INDENTED)
    lines = [each.with_changes(comma=comma) for each in first]
    behind = cst.Comma(whitespace_after=_AS_STATEMENT)
    end = last.with_changes(comma=behind, whitespace_after_arg=_NONE)
    return call.with_changes(whitespace_before_args=_INDENTED, args=[*lines, end])


def _indent(line: str) -> int:
    """Return the indentation of arguments on their own lines."""
    return len(line) - len(line.lstrip()) + len(_INDENTED.last_line.value)


def _inner(source: Source, call: cst.Call) -> str:
    """Lay out arguments on one line."""
    plain = [
        each.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_NONE)
        for each in call.args
    ]
    return ", ".join(map(source.code, plain))


def width(source: Source) -> int:
    """Return the line limit of a file, inferred from its lines."""
    longest = max(map(len, source.text.splitlines()), default=0)
    return next((each for each in _WIDTHS if longest <= each), _WIDTHS[-1])
