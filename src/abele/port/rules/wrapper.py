"""Writes the module that computes a model together with its loss."""

from __future__ import annotations

import builtins
import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import Statement, StepError
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.edits import renamed

_TOGETHER = "Computes the loss together with the model: a program contains both."


@dataclasses.dataclass
class Part:
    """Return the arguments of a wrapper's constructor.

    Attributes:
        name: of the argument and the attribute.
        value: the expression that gives it, as the step's function writes it.
    """

    name: str
    value: cst.BaseExpression


@dataclasses.dataclass
class Wrapper:
    """A module to be written.

    Attributes:
        parts: what it is given, models first.
        text: of the class, with ``{name}`` for its name.
    """

    parts: list[Part]
    text: str


def wrapper_of(context: Context, step: Step) -> Wrapper:
    """Return the module for a step.

    Raises:
        StepError: its loss needs what is not there where the model is wrapped.
    """
    parts = _parts(context, step)
    body = [_line(context, step, statement, parts) for statement in step.forward]
    loss = f'poptorch.identity_loss({step.loss}, reduction="none")'
    names = [part.name for part in parts]
    init = "".join(f"        self.{name} = {name}\n" for name in names)
    returned = ", ".join((*step.outputs, loss))
    text = (
        "class {name}(torch.nn.Module):\n"
        f'    """{_TOGETHER}"""\n\n'
        f"    def __init__(self, {', '.join(names)}):\n"
        f"        super().__init__()\n{init}\n"
        f"    def forward({', '.join(('self', *step.inputs))}):\n"
        f"{textwrap.indent(''.join(body), ' ' * 8)}"
        f"        return {returned}\n"
    )
    return Wrapper(parts, text)


def _parts(context: Context, step: Step) -> list[Part]:
    """Models, and whatever else is constant and not known everywhere in the file."""
    # A name may stand for several models, of which a branch has chosen one.
    nodes = {step.source.code(node): node for node in step.models.values()}
    parts = [Part(_attribute(node), node) for node in nodes.values()]
    known = {part.name for part in parts}
    if len(known) < len(parts):
        raise StepError(
            parts[-1].value,
            "two models of this step are attributes of the same name: rename one of them",
        )
    for node in _constants(context, step):
        name = _attribute(node)
        if name not in known:
            known.add(name)
            parts.append(Part(name, node))
    return parts


def _constants(context: Context, step: Step) -> Sequence[cst.BaseExpression]:
    """Names and attributes of ``self`` that the loss needs beside the batch."""
    needed: dict[str, cst.BaseExpression] = {}
    collect = _Constants(set(step.constants))
    for statement in step.forward:
        statement.visit(collect)
    for node in collect.nodes:
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


class _Constants(cst.CSTVisitor):
    """The names among some that are read, and attributes of ``self``."""

    def __init__(self, names: set[str]):
        self._names = names
        self.nodes: list[cst.BaseExpression] = []

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if m.matches(node.value, m.Name("self")):
            self.nodes.append(node)
        else:
            node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        if node.value == "self":
            raise StepError(
                node,
                "the loss uses self as a whole: use attributes of self there, which become "
                "arguments of the module around the model",
            )
        if node.value in self._names:
            self.nodes.append(node)


def _attribute(node: cst.BaseExpression) -> str:
    name = node.attr.value if isinstance(node, cst.Attribute) else getattr(node, "value", "")
    assert isinstance(name, str)
    return name


def _line(context: Context, step: Step, statement: Statement, parts: Sequence[Part]) -> str:
    """Return a statement of the step in the wrapper's form."""
    node: Any = context.edits(step.source).applied(statement)
    names = [part.name for part in parts if isinstance(part.value, cst.Name)]
    node = renamed(node, {name: f"self.{name}" for name in names})
    node = node.with_changes(leading_lines=[])
    return cst.Module([node]).code
