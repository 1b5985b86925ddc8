"""Lays out the arguments of a call whose arguments have changed, as the others were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

_Item = TypeVar("_Item", cst.Arg, cst.Param)
_Node = TypeVar("_Node")
_NONE = cst.SimpleWhitespace("")
_SPACE = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_INDENTED = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))


def laid_out(call: cst.Call, arguments: Sequence[cst.Arg]) -> cst.Call:
    """Return a call with other arguments, one in each line where it had so, with their comments.

    Args:
        call: as it is.
        arguments: all that it is to have.
    """
    if not arguments or not call.args:
        return call.with_changes(args=arguments)
    between = _between(call.args, call.whitespace_before_args)
    return call.with_changes(args=_spaced(call.args, arguments, between, "whitespace_after_arg"))


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
