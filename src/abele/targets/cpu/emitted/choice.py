"""Choice of the programs that are worth code of their own, and reasons per operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch

from abele.program import Program, has_effect, is_getitem, is_view, subgraphs
from abele.targets.cpu.emitted import build
from abele.targets.cpu.emitted.calls import HANDLERS, attention, convolutions
from abele.targets.translation.pointwise import RULES, TYPES
from abele.targets.translation.translate import VIEWS

_SMALLEST = torch.finfo(torch.float32).smallest_normal  # 1.2e-38


def are_meant(program: Program, constants: Iterable[torch.Tensor]) -> bool:
    """Return whether a program has a subnormal number, as in ``(mask + 1e-45).log()``.

    Args:
        program: whose operators may have it as an argument.
        constants: tensors of the program that may hold it.
    """
    arguments = ((node.args, node.kwargs) for node in program.graph.graph.nodes)
    numbers = (number for each in arguments for number in _numbers(each))
    return any(0.0 < abs(number) < _SMALLEST for number in numbers) or any(
        map(_has_some, constants)
    )


def _numbers(argument: Any) -> Iterator[float]:
    if isinstance(argument, float):
        yield argument
    elif isinstance(argument, dict):
        for value in cast(dict[str, Any], argument).values():
            yield from _numbers(value)
    elif isinstance(argument, list | tuple):
        for value in cast(Sequence[Any], argument):
            yield from _numbers(value)


def _has_some(constant: torch.Tensor) -> bool:
    if constant.dtype not in (torch.float32, torch.float64):
        return False  # of the others, half has subnormals, but none is one in float32
    sizes = constant.abs()
    return bool(((sizes > 0) & (sizes < _SMALLEST)).any())


aten = torch.ops.aten


def why(program: Program) -> str | None:
    """Return why a program gets code of its own, or ``None`` if it does not.

    Args:
        program: after the common pipeline.
    """
    if why_not(program) is not None:
        return None
    foreign, total = _foreign(program)
    reason = "C++ of its own runs it, compiled in seconds"
    if foreign:
        reason += f"; {len(foreign)} of {total} operators are called as torch has them"
    return reason


def why_not(program: Program) -> str | None:
    """Return why a program gets no code of its own, or ``None`` if it does; see ``why``."""
    impossible = why_impossible(program)
    if impossible is not None:
        return impossible
    if not any(_is_worth_code(node) for node in program.graph.graph.nodes):
        return "torch would compute all of it"
    return None


def why_impossible(program: Program) -> str | None:
    """Return why there can be no code for a program, or ``None`` if there can."""
    if any(True for _ in subgraphs(program.graph)):
        return "it has loops or branches"
    if any(has_effect(node) for node in program.graph.graph.nodes):
        return "it prints or calls the host"
    return build.unavailable()


def _is_worth_code(node: torch.fx.Node) -> bool:
    """Return whether code, or another lowering, may compute an operator faster than torch."""
    if node.op != "call_function" or _is_no_work(node):
        return False
    return _is_expressible(node) or node.target in (*convolutions.OPERATORS, *attention.HANDLERS)


def _is_no_work(node: torch.fx.Node) -> bool:
    """Return whether an operator only picks or views the result of another one."""
    return is_getitem(node) or is_view(node) or node.target in VIEWS


def _foreign(program: Program) -> tuple[list[torch.fx.Node], int]:
    """Return the operators that stay ATen calls, and the number of all."""
    operators = [node for node in program.graph.graph.nodes if node.op == "call_function"]
    return [node for node in operators if not _is_expressible(node)], len(operators)


def _is_expressible(node: torch.fx.Node) -> bool:
    """Return whether an operator probably becomes code."""
    if _is_no_work(node):
        return True
    if node.target in convolutions.OPERATORS:
        return convolutions.is_ours(node)
    if node.target in attention.HANDLERS:
        return attention.is_ours(node)
    known = node.target in RULES or node.target in HANDLERS or node.target is aten.copy_.default
    return known and all(value.dtype in TYPES for value in _values(node))


def _values(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    for each in (node, *node.all_input_nodes):
        value: Any = each.meta.get("val")
        several = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        for one in several:
            if isinstance(one, torch.Tensor):
                yield one
