"""Recognises calls that write the log: print, functions of logging, and methods of loggers."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.source import Source

_FUNCTIONS = frozenset(("print", "logging.info", "logging.warning"))
_METHODS = ("info", "warning")


def is_log(context: Context, source: Source, call: cst.Call) -> bool:
    """Whether a call writes a line of the log that one instance may write for all."""
    name = source.imported(call.func) or source.code(call.func)
    if name in _FUNCTIONS:
        return True
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _METHODS:
        return False
    return source.code(func.value).rpartition(".")[2] in _loggers(context)


def _loggers(context: Context) -> set[str]:
    """Names that the program gives to what ``logging.getLogger`` returns."""
    names: set[str] = set()
    for source in context.project.sources:
        for node in findall(source.module, m.Assign(value=m.Call())):
            assert isinstance(node, cst.Assign)
            value = cst.ensure_type(node.value, cst.Call)
            if source.imported(value.func) == "logging.getLogger":
                names |= {source.code(each.target).rpartition(".")[2] for each in node.targets}
    return names
