"""Minimal cost of a program's operators, in FLOPs and bytes, computed from its graph."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import torch

from abele import _torch
from abele.containers import is_sequence
from abele.ops import constant_convolution, lstm, recurrent, recurrent_loop
from abele.program import Program, is_getitem, is_view, marks_of
from abele.program.core import node_phase
from abele.report.record import Choice, Operators
from abele.targets.kernel_choice import reason

aten = torch.ops.aten

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_FORMULAS = "torch.utils.flop_counter"


def of_program(program: Program) -> tuple[Operators, ...]:
    """Return the operators of a program by phase, module and name, in order of first use."""
    entries: dict[tuple[str, str, str], Operators] = {}
    for node in program.graph.graph.nodes:
        if node.op != "call_function" or is_getitem(node):
            continue
        key = (node_phase(node) or "program", module_of(node), str(node.target))
        before = entries.get(key) or Operators(
            phase=key[0], module=key[1], name=key[2], count=0, operations=0, bytes=0
        )
        entries[key] = dataclasses.replace(
            before,
            count=before.count + 1,
            operations=before.operations + operations(node),
            bytes=before.bytes + moved_bytes(node),
        )
    return tuple(entries.values())


def choices(chosen: Mapping[torch.fx.Node, str]) -> tuple[Choice, ...]:
    """Return the backend of each operator with the reason and count, the most frequent first."""
    counts = Counter(
        (node_phase(node) or "program", str(node.target), by) for node, by in chosen.items()
    )
    return tuple(
        Choice(phase=phase, operator=name, by=by, why=reason(by), count=count)
        for (phase, name, by), count in counts.most_common()
    )


def module_of(node: torch.fx.Node) -> str:
    """Return the module path of a graph node; for backward, that of its forward node if known."""
    marks = marks_of(node)
    return str(marks.get("of_scope") or marks.get("scope") or "")


def moved_bytes(node: torch.fx.Node) -> int:
    """Return the bytes of the tensors that a graph node reads and writes; 0 for a view."""
    if is_view(node):
        return 0
    values = [each.meta.get("val") for each in node.all_input_nodes]
    return sum(map(bytes_of, [*values, node.meta.get("val")]))


def bytes_of(value: object) -> int:
    """Return the bytes of a tensor, or of all tensors in a sequence."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(bytes_of, value)) if is_sequence(value) else 0


@functools.cache
def _formulas() -> Any:
    """Return torch's module of FLOPs, loaded by the first report.

    A CUDA build of torch loads Triton with it, a fifth of a second, or warns that Triton's kernels
    will not be counted; programs have none.
    """
    log = logging.getLogger(_FORMULAS)
    before, log.disabled = log.disabled, True
    try:
        return importlib.import_module(_FORMULAS)
    finally:
        log.disabled = before


def operations(node: torch.fx.Node) -> int:
    """Return the FLOPs of a convolution, GEMM, attention or recurrent layer; 0 for others."""
    values: Any = torch.fx.map_arg(
        (node.args, dict(node.kwargs)), lambda each: each.meta.get("val")
    )
    target, arguments, options = cast("Any", node.target), *values
    if target is not None and target is _torch.convolution_with_activation():
        x, weight, bias, padding, stride, dilation, groups, *_ = arguments
        target = aten.convolution.default
        arguments = (x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
    elif target is constant_convolution.operator:
        x, weight, _, _, _, _, stride, padding, dilation, groups, *_ = arguments
        target = aten.convolution.default
        arguments = (x, weight, None, stride, padding, dilation, False, [0, 0], groups)
    elif target is _ATTENTION:  # those of GPUs are in the registry
        return _formulas().sdpa_flop_count(*(each.shape for each in arguments[:3]))
    elif target is _ATTENTION_BACKWARD:
        return _formulas().sdpa_backward_flop_count(*(each.shape for each in arguments[:4]))
    elif target in (lstm.forward, lstm.backward):
        x, *weights = arguments[:3]
        one = 2 * x.shape[0] * x.shape[1] * sum(each.numel() for each in weights)
        return one if target is lstm.forward else 2 * one  # for the inputs and for the weights
    elif target in (recurrent.forward, recurrent.backward):
        _, x, _, weights, *_ = arguments
        rows, (w_ih, w_hh) = x.shape[0] * x.shape[1], (each.numel() for each in weights[:2])
        # Backward multiplies the inputs once more.
        times = (1, 1) if target is recurrent.forward else (3, 2)
        return 2 * rows * (times[0] * w_ih + times[1] * w_hh)
    elif target in (recurrent_loop.forward, recurrent_loop.backward):
        weight = arguments[2 if target is recurrent_loop.forward else 4]
        steps, batch, _ = node.meta["val"][0].shape  # states, or gradients of all inputs
        steps -= target is recurrent_loop.forward
        return 2 * steps * batch * weight.numel()
    elif target is aten.convolution_backward.default and arguments[9] > 1:
        # The registry's counts every channel with every other.
        grad, x, weight, transposed = (arguments[index] for index in (0, 1, 2, 7))
        one = _formulas().conv_flop_count(x.shape, weight.shape, grad.shape, transposed=transposed)
        return one * sum(arguments[-1][:2])
    formula = _formulas().flop_registry.get(getattr(target, "overloadpacket", None))
    if formula is None:
        return 0
    return int(formula(*arguments, **options, out_val=node.meta.get("val")))
