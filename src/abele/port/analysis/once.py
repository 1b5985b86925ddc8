"""Finds what forward does with Python objects, which a compiled program does only once."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import targets_of
from abele.port.analysis.search import findall
from abele.port.project import Project
from abele.port.source import Source

_RANDOM = (
    "this random number is drawn once, when the program is compiled, and is the same in all "
    "calls: draw it with torch, as in torch.rand(()), or pass it to the model as a tensor"
)
_STATE = (
    "{name} changes in each call of forward, and a compiled program keeps the value of one "
    "call: make it a tensor with register_buffer, or an argument"
)
_SAME = ("random.seed", "random.getstate", "numpy.random.seed", "random.Random")


def random_numbers(source: Source, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, str]]:
    """Random numbers of Python or numpy that a piece of a program draws, each with the reason."""
    for call in findall(node, m.Call()):
        name = source.imported(call.func)
        if name.startswith(("random.", "numpy.random.")) and not name.startswith(_SAME):
            yield call, _RANDOM


def own_state(
    project: Project, source: Source, forward: cst.FunctionDef
) -> Iterator[tuple[cst.CSTNode, str]]:
    """Attributes that a forward computes from what they were, and that it reads beside that."""
    cls = source.enclosing(forward, cst.ClassDef)
    if cls is None:
        return
    buffers = {
        str(call.args[0].value.evaluated_value)
        for each in project.bases(cls)
        for call in findall(each, m.Call(func=m.Attribute(attr=m.Name("register_buffer"))))
        if call.args and isinstance(call.args[0].value, cst.SimpleString)
    }
    for node in findall(forward.body, m.Assign() | m.AugAssign()):
        for target in targets_of(node):
            of_self = m.matches(target, m.Attribute(value=m.Name("self")))
            if not isinstance(target, cst.Attribute) or not of_self or target.attr.value in buffers:
                continue
            same = m.Attribute(value=m.Name("self"), attr=m.Name(target.attr.value))
            again = isinstance(node, cst.AugAssign) or findall(node.value, same)
            inside = findall(node, same)
            if again and any(each not in inside for each in findall(forward.body, same)):
                yield node, _STATE.format(name=source.code(target))
