"""Choice of the programs for which C++ code is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch

from abele.ops.host_call import exchange
from abele.passes.of_lowerings.half import arithmetic
from abele.program import Program, has_effect, is_getitem, is_view, subgraphs
from abele.targets.cpu.emitted import build
from abele.targets.cpu.emitted.calls import HANDLERS, attention, convolutions
from abele.targets.translation.pointwise import NAMES, RULES
from abele.targets.translation.translate import VIEWS

aten = torch.ops.aten


def why(program: Program) -> str | None:
    """Return why C++ code is generated for a program, or ``None`` if it is not.

    Args:
        program: after the common pipeline.
    """
    reason = f"C++ of its own runs it, compiled in seconds{arithmetic(program)}"
    return None if why_not(program) else reason


def why_not(program: Program) -> str | None:
    """Return why no C++ code is generated for a program, or ``None`` if it is."""
    if (impossible := why_impossible(program)) is not None:
        return impossible
    if not any(_is_worth_code(node) for node in program.graph.graph.nodes):
        return "torch would compute all of it"
    return None


def why_impossible(program: Program) -> str | None:
    """Return why C++ code cannot be generated for a program, or ``None`` if it can."""
    if any(True for _ in subgraphs(program.graph)):
        return "it has loops or branches"
    if any(has_effect(n) and n.target is not exchange for n in program.graph.graph.nodes):
        return "it prints or calls the host"
    return build.unavailable()


def _is_worth_code(node: torch.fx.Node) -> bool:
    """Return whether generated code or another lowering may beat torch on an operator."""
    if node.op != "call_function" or _is_no_work(node):
        return False
    return _is_expressible(node) or node.target in (*convolutions.OPERATORS, *attention.HANDLERS)


def _is_no_work(node: torch.fx.Node) -> bool:
    """Return whether an operator only picks a result or is a view."""
    return is_getitem(node) or is_view(node) or node.target in VIEWS


def _is_expressible(node: torch.fx.Node) -> bool:
    """Return whether generated code probably computes an operator without ATen."""
    if _is_no_work(node):
        return True
    if node.target in convolutions.OPERATORS:
        return convolutions.is_ours(node)
    if node.target in attention.HANDLERS:
        return attention.is_ours(node)
    known = node.target in RULES or node.target in HANDLERS or node.target is aten.copy_.default
    return known and all(value.dtype in NAMES for value in _values(node))


def _values(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    for each in (node, *node.all_input_nodes):
        value: Any = each.meta.get("val")
        several = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        for one in several:
            if isinstance(one, torch.Tensor):
                yield one
