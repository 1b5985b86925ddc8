"""Which parts of a dictionary statements read, where they read no more of it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall


def read_by_key(name: str, statements: Iterable[cst.CSTNode]) -> list[str]:
    """The expressions by which statements read parts of a dictionary, each with its key.

    Returns:
        Texts of keys, in the order of the text; none if anything else is done with the dictionary.
    """
    own = m.Name(name)
    keys: dict[str, None] = {}
    for statement in statements:
        parts = findall(statement, m.Subscript(value=own))
        written = findall(statement, m.AssignTarget(m.Subscript(value=own)))
        written += findall(statement, m.AugAssign(m.Subscript(value=own)))
        if written or len(parts) != len(findall(statement, own)):
            return []
        for part in parts:
            if not m.matches(part, _BY_TEXT):
                return []
            index = cst.ensure_type(part.slice[0].slice, cst.Index)
            keys[cst.ensure_type(index.value, cst.SimpleString).value] = None
    return list(keys)


_BY_TEXT = m.Subscript(slice=[m.SubscriptElement(m.Index(m.SimpleString()))])
