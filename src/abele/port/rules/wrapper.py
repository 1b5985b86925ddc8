"""Writes the module that computes a model together with its loss."""

from __future__ import annotations

import builtins
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import Statement, StepError
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.edits import renamed

_TOGETHER = "Computes the loss together with the model: a program contains both."


def wrapper_of(context: Context, step: Step) -> tuple[dict[str, cst.BaseExpression], str]:
    """Return the arguments of the module for a step, models first, and its text.

    The text has ``{name}`` for the module's name.

    Raises:
        StepError: its loss needs what is not there where the model is wrapped.
    """
    parts = _parts(context, step)
    body = [_line(context, step, statement, parts) for statement in step.forward]
    loss = f'poptorch.identity_loss({step.loss}, reduction="none")'
    init = "".join(f"        self.{name} = {name}\n" for name in parts)
    returned = ", ".join((*step.outputs, loss))
    text = (
        "class {name}(torch.nn.Module):\n"
        f'    """{_TOGETHER}"""\n\n'
        f"    def __init__(self, {', '.join(parts)}):\n"
        f"        super().__init__()\n{init}\n"
        f"    def forward({', '.join(('self', *step.inputs))}):\n"
        f"{textwrap.indent(''.join(body), ' ' * 8)}"
        f"        return {returned}\n"
    )
    return parts, text


def _parts(context: Context, step: Step) -> dict[str, cst.BaseExpression]:
    """Models, and whatever else is constant and not known everywhere in the file."""
    # A name may stand for several models, of which a branch has chosen one.
    nodes = {step.source.code(node): node for node in step.models.values()}
    parts = {_attribute(node): node for node in nodes.values()}
    if len(parts) < len(nodes):
        reason = "two models of this step are attributes of the same name: rename one of them"
        raise StepError([*nodes.values()][-1], reason)
    for node in _constants(context, step):
        parts.setdefault(_attribute(node), node)
    return parts


def _constants(context: Context, step: Step) -> Sequence[cst.BaseExpression]:
    """Names and attributes of ``self`` that the loss needs beside the batch."""
    needed: dict[str, cst.BaseExpression] = {}
    for node in _read_nodes(step):
        code = step.source.code(node)
        things = context.things.of(step.source, node)
        if any(each.kind is Kind.MODEL for each in things) or code in needed:
            continue
        if isinstance(node, cst.Name):
            variable = context.things.variable(step.source, node)
            everywhere = variable is not None and variable.owner is step.source.module
            if everywhere or hasattr(builtins, node.value):
                continue
        needed[code] = node
    return list(needed.values())


def _read_nodes(step: Step) -> Iterator[cst.BaseExpression]:
    """Yield the constants of a step, and attributes of ``self``, where its statements read them.

    Raises:
        StepError: they use ``self`` as a whole.
    """
    own = m.Attribute(value=m.Name("self"))
    for node in (each for piece in step.forward for each in findall(piece, m.Name() | own)):
        around: Any = step.source.parent(node)
        is_part = isinstance(around, cst.Attribute) and around.attr is node
        if is_part or (isinstance(around, cst.Arg) and around.keyword is node):
            continue
        if m.matches(node, m.Name("self")) and not m.matches(around, own):
            raise StepError(node, _WHOLE)
        if m.matches(node, own) or (node.value in step.constants and node.value != "self"):
            yield node


_WHOLE = (
    "the loss uses self as a whole: use attributes of self there, which become arguments of the "
    "module around the model"
)


def _attribute(node: cst.BaseExpression) -> str:
    name = node.attr.value if isinstance(node, cst.Attribute) else getattr(node, "value", "")
    assert isinstance(name, str)
    return name


def _line(
    context: Context, step: Step, statement: Statement, parts: Mapping[str, cst.BaseExpression]
) -> str:
    """Return a statement of the step in the wrapper's form."""
    node: Any = context.edits(step.source).applied(statement)
    names = [name for name, node in parts.items() if isinstance(node, cst.Name)]
    node = renamed(node, {name: f"self.{name}" for name in names})
    node = node.with_changes(leading_lines=[])
    return cst.Module([node]).code
