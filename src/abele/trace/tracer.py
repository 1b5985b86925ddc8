"""Tracing: a function of tensors with names and roles -> a program.

The function may write to its tensors in place and return them; the program writes with final
``copy_`` only, and what it returns shares no memory with its inputs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from abele import _torch, cpython
from abele.program import (
    Program,
    Role,
    Slot,
    Stamp,
    returned_nodes,
    writes,
)
from abele.program.aliasing import own_constants, own_outputs
from abele.trace import operator_cache
from abele.trace.decompositions import PORTABLE_OPERATORS, conjugate_numbers, portable_kernels
from abele.trace.functionalize import pure
from abele.trace.operator_cache import Left
from abele.trace.tensor_names import Lookup

aten = torch.ops.aten

# Slots that no code of the user sees.
_OURS = {Role.OPTIMIZER_STATE, Role.ACCUMULATOR, Role.HYPER, Role.COUNTER}

_STATE = {Role.PARAMETER, Role.BUFFER}
_OF_FORWARD = {*_STATE, Role.INPUT}

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Named:
    """A tensor that becomes an input slot.

    Attributes:
        name: of the slot.
        role: of the slot.
        value: has its shape and dtype.
        requires_grad: of the traced tensor. Torch looks at it without gradients, too: a linear
            layer computes a transposed input by one GEMM if its weight requires a gradient.
    """

    name: str
    role: Role
    value: torch.Tensor
    requires_grad: bool = False


class Values:
    """The traced tensors of one call, by role and name."""

    def __init__(self, named: Sequence[Named], tensors: Sequence[torch.Tensor]):
        self._by_role: dict[Role, dict[str, torch.Tensor]] = {role: {} for role in Role}
        for item, tensor in zip(named, tensors, strict=True):
            self._by_role[item.role][item.name] = tensor

    def of(self, role: Role) -> dict[str, torch.Tensor]:
        """Return the tensors of a role by name."""
        return self._by_role[role]


def trace(
    name: str,
    body: Callable[[Values], tuple[list[torch.Tensor], Result]],
    named: Sequence[Named],
    mode: _torch.FakeTensorMode,
    lookup: Lookup,
) -> tuple[Program, Result]:
    """Run ``body`` once, on tensors without data.

    Args:
        name: of the program.
        body: what the program computes; returns its outputs, and what else the caller wants to
            know of it.
        named: the input slots, in order; only shapes and dtypes of the values are used.
        mode: makes the tensors.
        lookup: chooses which other tensors the program returns behind its outputs.

    Returns:
        The program, and what ``body`` returned beside its outputs.
    """
    started = time.perf_counter()
    fakes = [fake_of(item, mode) for item in named]
    state = {_address(item.value): item.name for item in named if item.role in _STATE}
    changed: list[Left] = []
    results: list[Result] = []

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        lookup.start()
        with operator_cache.remembering(mode, state) as (assigned, left):
            assigned.keep(
                (_known_as(item), tensor)
                for item, tensor in zip(named, tensors, strict=True)
                if item.role in _OF_FORWARD
            )
            outputs, result = body(Values(named, tensors))
            assigned.write_back()
            changed.extend(left())
        results.append(result)
        return [*outputs, *lookup.gradients]

    quiet = _torch.without_log_of_fakes()
    # Computations of finalizers would be traced too.
    with cpython.uncollected(), mode, portable_kernels(), quiet, _torch.code_when_run():
        leaves = [
            fake.requires_grad_() if item.requires_grad else fake
            for item, fake in zip(named, fakes, strict=True)
        ]
        traced = _torch.graph_of(function, leaves, PORTABLE_OPERATORS)
        conjugate_numbers(traced)
        graph = pure(traced, leaves)
    anchors = lookup.choose(graph, [(item.name, item.role) for item in named])
    own_constants(graph)
    own_outputs(graph)
    for memory, value in changed:
        memory.leave(value)
    return _as_program(name, graph, named, anchors, time.perf_counter() - started), results[0]


def _address(value: torch.Tensor) -> int:
    """Return which memory a tensor lives in."""
    return _torch.memory_of(value)


def _known_as(item: Named) -> str:
    """Return what a user calls a slot."""
    return "an input" if item.role is Role.INPUT else item.name


def fake_of(item: Named, mode: _torch.FakeTensorMode) -> torch.Tensor:
    """Return a tensor without data that stands for a slot."""
    value = item.value
    if value.layout is torch.strided and (item.role in _OURS or _is_whole(value)):
        # The general way looks into all that a tensor can be, and takes ten times as long.
        return _torch.laid_out_like(value, mode)
    return mode.from_tensor(value)


def _is_whole(value: torch.Tensor) -> bool:
    """Return whether a tensor is exactly its storage, in order, and of no special type."""
    size = value.numel() * value.element_size()
    whole = value.is_contiguous() and value.untyped_storage().nbytes() == size
    return whole and type(value) is torch.Tensor and not (value.is_complex() or value.is_quantized)


def _as_program(
    name: str,
    graph: torch.fx.GraphModule,
    named: Sequence[Named],
    anchors: Sequence[str],
    seconds: float,
) -> Program:
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    mutated = {node.args[0] for node in graph.graph.nodes if writes(node)}
    inputs = tuple(
        Slot(
            name=item.name,
            role=item.role,
            shape=tuple(item.value.shape),
            dtype=item.value.dtype,
            mutated=node in mutated,
        )
        for item, node in zip(named, nodes, strict=True)
    )
    returned = returned_nodes(graph)
    roles = [(f"output{index}", Role.OUTPUT) for index in range(len(returned) - len(anchors))]
    roles += [(anchor, Role.ANCHOR) for anchor in anchors]
    outputs = tuple(
        Slot(
            name=slot,
            role=role,
            shape=tuple(node.meta["val"].shape),
            dtype=node.meta["val"].dtype,
        )
        for (slot, role), node in zip(roles, returned, strict=True)
    )
    stamp = Stamp(by="capture", seconds=seconds, nodes=len(graph.graph.nodes))
    program = Program(name=name, graph=graph, inputs=inputs, outputs=outputs, history=(stamp,))
    return program.verify()
