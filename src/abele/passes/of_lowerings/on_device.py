"""Moving a program from the host, where it was captured, to a device.

    a = full([2], 1.0, device=cpu); b = constant(host tensor)   ->   the same on cuda:0

The session moves the slots; this pass moves constants and the tensors that a graph creates.
"""

from __future__ import annotations

import copy

import torch

from abele import _torch
from abele.containers import is_sequence
from abele.passes._edit import editable, finished
from abele.program import Program, subgraphs


def on_device(program: Program, device: torch.device) -> Program:
    """Return the same program with every value on ``device``."""
    graph = editable(program)
    _move(graph, device)
    return finished(program, graph)


def _move(graph: torch.fx.GraphModule, device: torch.device) -> None:
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    for name, constant in graph.state_dict().items():
        if "." not in name:  # those of inner graphs move with their graph
            delattr(graph, name)
            graph.register_buffer(name, constant.to(device))
    for name, inner in list(subgraphs(graph)):
        # A copy: the program that is being moved keeps its own.
        moved = torch.fx.GraphModule(inner, copy.deepcopy(inner.graph))
        _move(moved, device)
        moved.recompile()
        setattr(graph, name, moved)
    # Shapes and types stay; the device of each value is found by running on tensors without data.
    mode = _torch.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        for node in graph.graph.nodes:
            node.meta["val"] = _moved(node.meta.get("val"), device)


def _moved(value: object, device: torch.device) -> object:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    if is_sequence(value):
        return type(value)(_moved(item, device) for item in value)
    return value
