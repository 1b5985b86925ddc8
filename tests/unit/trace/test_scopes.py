"""Nodes remember the module that made them, and the marks that were open."""

import torch

from abele.trace import scopes
from helpers.runs import captured, rule_for


class Inner(torch.nn.Module):
    def forward(self, x):
        before = scopes.mark("block", "second")
        scopes.push("named")
        x = torch.sin(x)
        scopes.pop()
        scopes.mark("block", before)
        return torch.cos(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), Inner()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.mse_loss(torch.tanh(x), x.detach())


def marks(program, operator):
    return next(
        {key: value for key, value in node.meta["custom"].items() if key != "phase"}
        for node in program.graph.graph.nodes
        if node.op == "call_function" and node.target is operator
    )


def test_nodes_know_their_scope_and_marks():
    model = Model()
    (program,) = captured(model, [torch.randn(2, 3)], rule=rule_for(model)).programs
    aten = torch.ops.aten
    assert marks(program, aten.addmm.default) == {"scope": "layers/0"}
    assert marks(program, aten.sin.default) == {"scope": "layers/1/named", "block": "second"}
    assert marks(program, aten.tanh.default) == {"scope": ""}


def test_scopes_outside_a_capture_do_nothing():
    scopes.push("nowhere")
    assert scopes.mark("block", 1) is None
    assert scopes.current("block") is None
    scopes.pop()
