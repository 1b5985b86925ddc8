"""Connects several instances in the new mode, and has one of them write the log."""

from __future__ import annotations

from typing import Any

import libcst as cst

from abele.port.analysis.batches import loader_in_function
from abele.port.analysis.flow import writes
from abele.port.context import Context
from abele.port.edits import Edits
from abele.port.finding import Verdict
from abele.port.modes.edits import ModeEdits
from abele.port.routes import NoRouteError
from abele.port.source import Source

_METHOD = '''def {name}(self, log, *values):
    """Log once for all instances; in other modes each process does."""
    if {others} or popdist.getInstanceIndex() == 0:
        log(*values)
'''
_ALONE = "popdist is None or popdist.getInstanceIndex() == 0"
_ONE = "one instance logs, not each; other modes log as before"
_CONNECTED = "poprun starts the instances, and this connects them, in the new mode only"
_ALIKE = (
    "poptorch.DataLoader would give each instance its share; what this gives has to depend on "
    "popdist.getInstanceIndex(), by its seed for example, or all instances train alike"
)


def connect(context: Context) -> None:
    """Connect instances when an object that trains is made."""
    for step in context.steps:
        cls = step.source.enclosing(step.backward, cst.ClassDef)
        made = None if cls is None else context.project.method(cls, "__init__")
        if made is None or not isinstance(made.body, cst.IndentedBlock):
            continue
        source = context.project.source(made)
        context.edits(source).need("import popdist")
        context.edits(source).after(
            made.body.body[-1], "if popdist.isPopdistEnvSet():\n    popdist.init()"
        )
        context.say(source, made, "ABP801", Verdict.MODIFIED, _CONNECTED)


def say_alike(context: Context) -> None:
    """Say where batches come from that no loader shares out: each instance has the same."""
    for step in context.steps:
        if step.loop is not None and loader_in_function(context.things, step.source, step.backward):
            continue
        first = step.forward[0]
        for statement in step.block[: step.block.index(first) if first in step.block else 0]:
            if set(writes(statement)) & set(step.inputs):
                context.say(step.source, statement, "ABP804", Verdict.MANUAL, _ALIKE)


def log_once(context: Context, source: Source, statement: cst.SimpleStatementLine) -> None:
    """Have one instance execute a statement that logs.

    Args:
        context: the program.
        source: the file.
        statement: one call.
    """
    edits: Edits = context.edits(source)
    edits.need("import popdist")
    context.say(source, statement, "ABP806", Verdict.MODIFIED, _ONE)
    cls = source.enclosing(statement, cst.ClassDef)
    name = "" if cls is None else _method(context, source, statement, cls)
    edits.always(statement, (lambda node: _by_method(node, name)) if name else _alone)


def _method(context: Context, source: Source, statement: cst.CSTNode, cls: cst.ClassDef) -> str:
    """The name of the method that logs, which the class has from now on; ``""`` if it cannot."""
    root = context.project.bases(cls)[-1]
    at = context.project.source(root)
    try:
        test = context.test(at, root.body.body[0])
    except NoRouteError:
        return ""
    if not test.startswith("self.") or _is_static(source, statement):
        return ""
    name = context.name(at, "log_in_single_instance")
    edits = context.edits(at)
    assert isinstance(edits, ModeEdits)
    edits.need("import popdist")
    edits.method(root, _METHOD.format(name=name, others=test.replace(" == ", " != ")))
    return name


def _is_static(source: Source, node: cst.CSTNode) -> bool:
    """Whether a node is in a function without an object."""
    function = source.enclosing(node, cst.FunctionDef)
    params = () if function is None else function.params.params
    return not params or params[0].name.value != "self"


def _by_method(node: Any, name: str) -> Any:
    """``log(text)`` as a call of the method."""
    (expression,) = node.body
    call = expression.value
    log = cst.Arg(call.func, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    func: Any = cst.parse_expression(f"self.{name}")
    call = call.with_changes(
        func=func, args=[log, *call.args] if call.args else [cst.Arg(call.func)]
    )
    return node.with_changes(body=[expression.with_changes(value=call)])


def _alone(node: Any) -> Any:
    """A statement that only the first instance executes."""
    made: Any = cst.parse_statement(f"if {_ALONE}:\n    pass\n")
    body = made.body.with_changes(body=[node.with_changes(leading_lines=[])])
    return made.with_changes(body=body, leading_lines=node.leading_lines)
