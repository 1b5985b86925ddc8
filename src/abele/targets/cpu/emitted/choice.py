"""Choice of the programs that are worth code of their own, and reasons per operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch

from abele.program import Program, has_effect, is_getitem, is_view, subgraphs
from abele.targets.base import LOOP
from abele.targets.cpu.emitted import build, calls
from abele.targets.cpu.emitted.calls import HANDLERS, attention, convolutions
from abele.targets.cpu.emitted.clocked import who
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue
from abele.targets.kernel_choice import KernelChoice
from abele.targets.translation import reasons as shared
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign
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
        return convolutions.why_not(node) is None
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


_CALLS = {
    "convolve": "few channels: our kernel is faster than the library's",
    "convolve_backward": "few channels: our kernel is faster than the library's",
    "convolve_and_pool": "only a pool of 2 x 2 reads the convolution: one kernel does both",
    "convolve_and_pool_backward": "the gradient of a pool goes to one convolution: one kernel",
    "depthwise": "a kernel for each channel: ours reads images where they lie",
    "depthwise_backward": "a kernel for each channel: ours reads images where they lie",
    "channels": "sums of channels and the loops around them: each block of channels is read once",
    "multiply": "large enough for our kernel of products in float32",
    "product": "too small for our kernel of products, or not in float32: the library's",
    "products": "too small for our kernel of products, or not in float32: the library's",
    "pool": "windows of 2 x 2 side by side: our kernel",
    "pool_backward": "windows of 2 x 2 side by side: our kernel",
    "recurrent": "all time steps of the layer: our kernel",
    "recurrent_backward": "all time steps of the layer: our kernel",
    "attention": "float32 without mask and dropout: our kernel keeps scores in the cache",
    "attention_backward": "float32 without mask and dropout: our kernel keeps scores in the cache",
}
_TEMPLATE = "a template of ours, compiled for its sizes"
_ROWS = "only a loop reads the product: it runs on rows that are still in the cache"


def kernel_choices(program: Program, units: list[Unit]) -> dict[torch.fx.Node, KernelChoice]:
    """Return who computes each operator, and why.

    Args:
        program: after the passes of the lowering.
        units: that it was translated to.
    """
    return shared.kernel_choices(program, units, _of_unit)


def _of_unit(unit: Unit) -> KernelChoice:
    first, by = unit.operations[0], who(unit)
    if isinstance(first, Foreign) and first.part_of is not None:
        return KernelChoice(by, why_torch(first.part_of))
    if by == LOOP:
        return shared.loop_choice(unit)
    if isinstance(unit, GemmWithEpilogue):
        return KernelChoice(by, _ROWS)
    return KernelChoice(by, _CALLS.get(by, _TEMPLATE))


def why_torch(node: torch.fx.Node) -> str:
    """Return why an operator is called as torch has it."""
    if node.target in convolutions.OPERATORS:
        return convolutions.why_not(node) or "torch's call: the pass that replaces it did not run"
    if node.target in attention.HANDLERS:
        return "torch's call: our kernel is for float32 without mask and dropout"
    unknown = {str(t).removeprefix("torch.") for t in shared.types_of(node) if t not in TYPES}
    if unknown:
        return f"torch's call: loops do not know {', '.join(sorted(unknown))}"
    if shared.sees(node):
        return "torch's call: its argument lies so that it cannot be seen this way"
    if node.target in calls.HANDLERS or node.target in RULES:
        return "torch's call: the code for it does not cover these arguments"
    return "torch's call: no code is written for this operator"
