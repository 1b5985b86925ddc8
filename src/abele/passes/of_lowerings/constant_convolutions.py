"""Fusion of inference convolutions with the batch norm, sum and activation that follow.

    c = convolution(x, w, b); n = batch_norm(c, ...); y = relu(n + r)
->  y = constant_convolution(x, w, b, [...], eps, r, ..., "relu", [])

Only programs that change nothing have constants. Convolutions of few channels keep their kernels,
and bfloat16 ones stay oneDNN's unless Winograd's kernel computes them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele.kernels.convolutions import DIRECT, PATCHES, WINOGRAD, kernel_of
from abele.ops import constant_convolution
from abele.passes._edit import editable, finished
from abele.passes.of_lowerings.normalisation import results_of
from abele.program import Program, Role
from abele.program.aliasing import erase_dead_nodes, stays_in_program

# On an AMD EPYC of family 26, a checksum of a small classifier's weights takes as long as their
# products with one row. That of ResNet-18's takes a sixth of a call, which is a third shorter.
_WORTH_LOOKING = 32

aten = torch.ops.aten

_Node = torch.fx.Node


def constant_convolutions(program: Program) -> Program:
    """Fuse convolutions of constant weights with what follows, in inference of a wrapped model."""
    if not has_constants(program):
        return program
    graph, constants = editable(program), set[_Node]()
    for node, slot in zip(graph.graph.find_nodes(op="placeholder"), program.inputs, strict=True):
        if slot.role in (Role.PARAMETER, Role.BUFFER):
            constants.add(node)
    for node in list(graph.graph.nodes):
        if _suits(node, constants):
            _replace(_Match(node), constants)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def has_constants(program: Program) -> bool:
    """Return whether a program should keep what it computes of parameters and buffers alone.

    They change only between calls in inference: of wrapped models, which have tensors of their own,
    and of functions and graphs of ``torch.compile``, whose tensors are the user's. Finding changes
    of these takes a pass over their memory in each call (``targets.cpu.changes``), which is worth
    it where a call uses each weight often.
    """
    if any(slot.mutated for slot in program.inputs):
        return False
    of_user = program.name in ("call", "inference_graph")
    return program.name == "forward" or (of_user and _uses(program) >= _WORTH_LOOKING)


def _uses(program: Program) -> float:
    """Return how many rows or pixels a program multiplies by its weights, on average."""
    fixed, elements, rows = set[_Node](), dict[_Node, int](), 0
    for node, slot in zip(program.placeholders(), program.inputs, strict=True):
        if slot.role in (Role.PARAMETER, Role.BUFFER):
            fixed.add(node)
    for node in program.graph.graph.nodes:
        values = {each: each.meta.get("val") for each in node.all_input_nodes}
        weights = [each for each in values if each in fixed]
        given = [v for each, v in values.items() if each not in fixed and _is_multiplied(v)]
        if weights and len(weights) == len(values) and node.op == "call_function":
            fixed.add(node)
        elif given:
            most = max(v.numel() // max(1, v.shape[1 if v.dim() == 4 else -1]) for v in given)
            used = {each: values[each].numel() for each in weights if _is_multiplied(values[each])}
            elements |= used
            rows += most * sum(used.values())
    return rows / max(1, sum(elements.values()))


def _is_multiplied(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1


def _suits(node: _Node, constants: set[_Node]) -> bool:
    """Return whether a node is a convolution whose weight should be packed once."""
    if node.target is not aten.convolution.default:
        return False
    arguments: tuple[Any, ...] = node.args
    x, weight, bias, _, _, _, transposed, _, _ = arguments
    values = node.meta["val"], x.meta["val"], weight.meta["val"]
    known = all(
        each is None or (each.op == "placeholder" and each in constants) for each in (weight, bias)
    )
    plain = all(v.dim() == 4 and v.numel() for v in values)
    if not (known and plain and torch.backends.mkldnn.is_available()) or transposed:
        return False
    kernel, types = kernel_of(node, constant=True), {v.dtype for v in values}
    if types != {torch.float32}:
        return types == {torch.bfloat16} and kernel is WINOGRAD
    # oneDNN computes packed 1x1 of few channels 1.5 to 2 times as fast as the direct kernel.
    pointwise = weight.meta["val"].shape[2:] == (1, 1)
    return kernel is not PATCHES and (pointwise or kernel is not DIRECT)


@dataclasses.dataclass
class _Match:
    """A convolution with what follows; ``last`` is the node that the operator replaces."""

    last: _Node
    norm: tuple[_Node, ...] = ()
    eps: float = 0.0
    added: _Node | None = None
    activation: str = "none"
    scalars: tuple[float, ...] = ()


def _replace(match: _Match, constants: set[_Node]) -> None:
    convolution = match.last
    x, weight, bias, stride, padding, dilation, _, _, groups = convolution.args
    _take_norm(match, constants)
    _take_sum(match)
    _take_activation(match)
    last = match.last
    settings = (stride, padding, dilation, groups, match.activation, list(match.scalars))
    arguments = (x, weight, bias, list(match.norm), match.eps, match.added, *settings)
    with last.graph.inserting_before(last):
        new = last.graph.call_function(constant_convolution.operator, arguments)  # type: ignore[arg-type]
    new.meta = dict(last.meta)
    last.replace_all_uses_with(new)


def _take_norm(match: _Match, constants: set[_Node]) -> None:
    (user, *others) = match.last.users or (None,)
    if others or user is None:
        return
    if user.target is not aten._native_batch_norm_legit_no_training.default:
        return
    arguments: tuple[Any, ...] = user.args
    x, *norm, _, eps = arguments
    picked = results_of(user)
    if x is not match.last or set(picked) != {0} or not all(each in constants for each in norm):
        return
    match.last, match.norm, match.eps = picked[0], tuple(norm), eps


def _take_sum(match: _Match) -> None:
    users = list(match.last.users)
    if len(users) != 1 or users[0].target is not aten.add.Tensor or users[0].kwargs:
        return
    one, other = users[0].args
    added: Any = other if one is match.last else one
    if not isinstance(added, _Node) or added is match.last:
        return
    here, there = match.last.meta["val"], added.meta["val"]
    if here.shape == there.shape and here.dtype == there.dtype:
        match.last, match.added = users[0], added


def _take_activation(match: _Match) -> None:
    users = list(match.last.users)
    known = _NAMES.get(users[0].target) if len(users) == 1 else None
    if known is not None:
        match.activation, defaults = known
        given: Any = users[0].args[1:]
        match.scalars = (*map(float, given), *defaults[len(given) :])
        match.last = users[0]


_NAMES: dict[Any, tuple[str, tuple[float, ...]]] = {
    aten.relu.default: ("relu", ()),
    aten.leaky_relu.default: ("leaky_relu", (0.01,)),
    aten.hardtanh.default: ("hardtanh", (-1.0, 1.0)),
    aten.silu.default: ("swish", ()),
    aten.hardswish.default: ("hardswish", ()),
}
