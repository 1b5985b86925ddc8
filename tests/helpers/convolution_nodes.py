"""Convolutions as nodes of a program."""

import torch

from helpers.runs import started


def forward_node(module: torch.nn.Module, images: torch.Tensor) -> torch.fx.Node:
    """The convolution of a module that has one, captured with these images."""
    session, _ = started(module, (images,), None)
    (program,) = session.executable.programs
    aten = torch.ops.aten.convolution.default
    (node,) = program.graph.graph.find_nodes(op="call_function", target=aten)
    return node
