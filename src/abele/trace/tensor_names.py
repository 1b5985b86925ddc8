"""Names for the tensors of a program, by which users select those to observe.

    fc.weight                a parameter or buffer, as forward used it
    Gradient___fc.weight     its gradient, of one micro-batch, as backward left it
    Accum___fc.weight        the sum of gradients, after this micro-batch was added
    UpdatedVar___fc.weight   its value after the program has written it
    Accl1___fc.weight        state of the optimizer after the update (Accl2___, Accl3___, Step___)
    encoder/fc1/Gemm:0       a result of forward: modules, kind of operation, which result
    finalLossScale           the loss scale that gradients were computed with, if it adapts itself
    input0, output0          what goes in and comes out

Equal names of forward get the suffixes ``/1``, ``/2`` in the order of the program, so a name is
unique and the same in every capture.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from abele._torch import schema_of
from abele.errors import CaptureError
from abele.program import (
    Role,
    called_operator,
    is_getitem,
    node_argument,
    output_node,
    returned_nodes,
    writes,
)
from abele.program.aliasing import erase_dead_nodes
from abele.program.core import node_phase
from abele.step import loss_scaling

# Operator names of interchange formats; other operators have their own names.
_KINDS = {
    "addmm": "Gemm",
    "mm": "MatMul",
    "bmm": "MatMul",
    "convolution": "Conv",
    "_softmax": "Softmax",
    "_log_softmax": "LogSoftmax",
    "max_pool2d_with_indices": "MaxPool",
    "avg_pool2d": "AveragePool",
    "_native_batch_norm_legit": "BatchNormalization",
    "_native_batch_norm_legit_no_training": "BatchNormalization",
    "native_layer_norm": "LayerNormalization",
    "native_group_norm": "GroupNormalization",
    "native_dropout": "Dropout",
    "nll_loss_forward": "Nll",
    "nll_loss2d_forward": "Nll",
    "embedding": "Gather",
    "cat": "Concat",
    "view": "Reshape",
    "t": "Transpose",
    "_to_copy": "Cast",
}
_SILENT = {"detach", "alias"}  # they return their argument
_STATE = {
    "exp_avg": "Accl1",
    "exp_avg_sq": "Accl2",
    "square_avg": "Accl1",
    "grad_avg": "Accl2",
    "acc_delta": "Accl2",
    "sum": "Accl1",
    "exp_inf": "Accl2",
    "ax": "Accl1",
    "prev": "Accl1",
    "step_size": "Accl2",
    "step": "Step",
}


class Lookup:
    """The names of a capture's tensors, and the tensors that were requested.

    Args:
        requested: names of tensors that programs are to return besides their outputs.
    """

    def __init__(self, requested: Sequence[str] = ()):
        self._requested = tuple(dict.fromkeys(requested))
        self._names: dict[str, None] = {}
        self._gradients: dict[str, torch.Tensor] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Every name given to a tensor of the capture, parameters first."""
        return tuple(self._names)

    def start(self) -> None:
        """Drop the gradients of the previous program."""
        self._gradients = {}

    def note_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Store traced gradients by the names of their parameters."""
        self._gradients = dict(gradients)

    @property
    def gradients(self) -> list[torch.Tensor]:
        """Traced gradients, which a traced function returns after its outputs for ``choose``."""
        return list(self._gradients.values())

    def choose(
        self, graph: torch.fx.GraphModule, slots: Sequence[tuple[str, Role]]
    ) -> tuple[str, ...]:
        """Replace the gradients that a graph returns by the requested tensors.

        Args:
            graph: returns its outputs and then ``gradients``; changed in place.
            slots: name and role of each placeholder.

        Returns:
            The names of the tensors that it now returns behind its outputs.
        """
        returned = returned_nodes(graph)
        count = len(returned) - len(self._gradients)
        outputs, gradients = returned[:count], returned[count:]
        by_name = dict(zip(self._gradients, gradients, strict=True))
        named = dict(_named(graph, slots, outputs, by_name))
        new = {name: node for name, node in named.items() if name not in self._names}
        self._names |= dict.fromkeys(new)
        chosen = [name for name in self._requested if name in new]
        output_node(graph).args = ([*outputs, *(new[name] for name in chosen)],)
        erase_dead_nodes(graph)
        graph.recompile()
        return tuple(chosen)

    def check(self) -> None:
        """Raise CaptureError for tensor names that no program has, naming the nearest ones."""
        for name in self._requested:
            if name not in self._names:
                raise CaptureError(
                    f"No tensor of the model is named {name!r}. {_near(name, self.names)} "
                    f"All {len(self.names)} names: getTensorNames() of a wrapper without anchors."
                )


def _near(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 5, 0.5)
    return f"Near it are: {', '.join(near)}." if near else "None is like it."


def _named(
    graph: torch.fx.GraphModule,
    slots: Sequence[tuple[str, Role]],
    outputs: Sequence[torch.fx.Node],
    gradients: Mapping[str, torch.fx.Node],
) -> Iterator[tuple[str, torch.fx.Node]]:
    """Yield names and nodes of a graph's tensors, each name once."""
    used: set[str] = set()
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for name, node in (
        *_of_slots(graph, list(zip(slots, nodes, strict=True))),
        *((f"Gradient___{name}", node) for name, node in gradients.items()),
        *_of_forward(graph),
        *((f"output{index}", node) for index, node in enumerate(outputs)),
    ):
        unique, count = name, 0
        while unique in used:
            count += 1
            unique = f"{name}/{count}"
        used.add(unique)
        yield unique, node


def _of_slots(
    graph: torch.fx.GraphModule, slots: Sequence[tuple[tuple[str, Role], torch.fx.Node]]
) -> Iterator[tuple[str, torch.fx.Node]]:
    new_values = {
        node_argument(node, 0): node_argument(node, 1) for node in graph.graph.nodes if writes(node)
    }
    states = {name for (name, role), _ in slots if role is Role.OPTIMIZER_STATE}
    adapts = any(name in loss_scaling.COUNTERS for (name, _), _ in slots)
    for (name, role), node in slots:
        if role is Role.ACCUMULATOR:
            yield f"Accum___{name.removeprefix('accumulator.')}", new_values.get(node, node)
        elif role is Role.OPTIMIZER_STATE:
            yield state_name(name, states), new_values.get(node, node)
        else:
            yield name, node
    for (name, role), node in slots:
        if node in new_values and role in (Role.PARAMETER, Role.BUFFER):
            yield f"UpdatedVar___{name}", new_values[node]
        if adapts and name == "loss_scaling":
            yield "finalLossScale", node


def state_name(slot: str, all_slots: Collection[str]) -> str:
    """Return the user's name of an optimizer-state slot, such as ``Accl1___fc.weight``.

    Args:
        slot: name of an optimizer-state slot.
        all_slots: the names of all of them: a momentum is third where a square comes first.
    """
    parameter, _, key = slot.rpartition(".")
    if key == "momentum_buffer":
        return f"Accl{3 if f'{parameter}.square_avg' in all_slots else 1}___{parameter}"
    return f"{_STATE.get(key, key)}___{parameter}"


def _of_forward(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.Node]]:
    for node in graph.graph.nodes:
        if node.op != "call_function" or node_phase(node) != "forward" or writes(node):
            continue
        if not isinstance(node.meta.get("val"), torch.Tensor):
            continue  # an operation with several results: those that are picked are named
        source = node_argument(node, 0) if is_getitem(node) else node
        if called_operator(source) is not None and _operator(source) not in _SILENT:
            index = node.args[1] if is_getitem(node) else 0
            custom: dict[str, Any] = node.meta.get("custom") or {}
            scope = custom.get("scope")
            yield f"{f'{scope}/' if scope else ''}{_kind(source)}:{index}", node


def _operator(node: torch.fx.Node) -> str:
    operator = called_operator(node)
    assert operator is not None, node
    return schema_of(operator).name.rpartition("::")[2]


def _kind(node: torch.fx.Node) -> str:
    operator = _operator(node)
    return _KINDS.get(operator) or "".join(
        part.capitalize() for part in operator.split("_") if part
    )
