"""Recomputation: which nodes are computed again, where, with equal bits and less memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import passes
from abele.ops.checkpoint import checkpoint
from abele.ops.print_tensor import print_tensor
from abele.passes import recomputation
from abele.program import is_getitem, is_view, returned_nodes
from abele.program.core import node_phase
from abele.trace import scopes
from conftest import usable
from helpers import deep_training
from helpers.deep_training import BLOCKS, LAYERS, DeepNetwork, batch
from helpers.runs import assert_same_bits, captured, rule_for, run, started
from helpers.warm_python import python

aten = torch.ops.aten


def lowered(model, inputs):
    (program,) = captured(model, inputs, rule=rule_for(model)).programs
    return passes.run(program)


def phases(program, operator):
    nodes = program.graph.graph.nodes
    return [node_phase(node) for node in nodes if node.target is operator]


class Two(torch.nn.Module):
    """Two dense layers; ``between`` gets the first one's result, ``also`` what is returned."""

    def __init__(self, between=checkpoint, also=()):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.between, self.also = between, also

    def forward(self, x, target):
        first = torch.tanh(self.first(x)).exp()
        x = self.between(first)
        second = checkpoint(self.second(x).tanh().exp())
        loss = F.mse_loss(second, target)
        return [{"first": first}[name] for name in self.also] + [loss]


X, Y = torch.randn(3, 4), torch.randn(3, 4)


def test_values_between_marks_are_computed_again_in_backward():
    program = lowered(Two(), [X, Y])
    assert phases(program, aten.tanh.default) == ["forward"] * 2 + ["backward"] * 2
    # Both exp are marked, so they are kept.
    assert phases(program, aten.exp.default) == ["forward"] * 2
    assert "checkpoint" not in program.text()


def test_a_program_without_marks_stays_as_it_is():
    model = Two(between=lambda x: x)
    (program,) = captured(model, [X, Y], rule=rule_for(model)).programs
    program = passes.run(program)
    assert phases(recomputation(program), aten.tanh.default) == phases(program, aten.tanh.default)
    network = DeepNetwork(checkpoints=False)
    (plain,) = captured(network, batch(2), rule=rule_for(network)).programs
    assert recomputation(plain) is plain


def test_what_follows_the_last_mark_is_kept():
    class Tail(Two):
        def forward(self, x, target):
            return F.mse_loss(torch.sin(self.second(checkpoint(self.first(x)))), target)

    program = lowered(Tail(), [X, Y])
    assert phases(program, aten.addmm.default) == ["forward"] * 2


def test_random_results_are_kept():
    program = lowered(Two(between=lambda x: checkpoint(F.dropout(torch.sin(x), 0.5))), [X, Y])
    random = [
        node_phase(node)
        for node in program.graph.graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    ]
    assert random == ["forward"]


def test_prints_are_not_repeated():
    program = lowered(Two(between=lambda x: checkpoint(print_tensor(x, "x").sin())), [X, Y])
    assert phases(program, torch.ops.abele.print_tensor.default) == ["forward"]


def test_what_the_program_returns_is_kept():
    # exp(first) is returned and sin's gradient reads it.
    model = Two(between=lambda x: checkpoint(torch.sin(x)), also=("first",))
    program = lowered(model, [X, Y])
    assert phases(program, aten.exp.default) == ["forward"] * 2
    other = lowered(Two(between=lambda x: checkpoint(torch.sin(x))), [X, Y])
    assert phases(other, aten.exp.default) == ["forward", "forward", "backward"]


def test_views_of_kept_values_are_not_computed_again():
    program = lowered(Two(between=lambda x: checkpoint(x.reshape(2, 6)).reshape(3, 4)), [X, Y])
    assert phases(program, aten.exp.default) == ["forward"] * 2


def test_a_mark_on_a_strided_value_copies_it():
    model = Two(between=lambda x: checkpoint(x.unsqueeze(0).expand(2, 3, 4)).view(6, 4)[:3])
    program = lowered(model, [X, Y])
    assert phases(program, aten.clone.default) == ["forward"]
    plain = Two(between=lambda x: x.unsqueeze(0).expand(2, 3, 4).reshape(6, 4)[:3])
    actual, expected = (run(started(m, [X, Y], rule_for(m))[0], [[X, Y]]) for m in (model, plain))
    assert_same_bits(actual, expected)


def test_values_that_pass_to_another_segment_are_marked():
    class Staged(Two):
        def forward(self, x, target):
            before = scopes.mark("segment", 0)
            x = self.first(x).tanh().exp()
            scopes.mark("segment", 1)
            x = self.second(x).tanh().exp()
            scopes.mark("segment", 2)
            loss = F.mse_loss(x.sin(), target)
            scopes.mark("segment", before)
            return loss

    program = lowered(Staged(), [X, Y])
    assert phases(program, aten.tanh.default) == ["forward"] * 2 + ["backward"] * 2
    assert phases(program, aten.exp.default) == ["forward"] * 2


def test_clones_stand_right_before_their_first_reader():
    program = lowered(DeepNetwork(checkpoints=True), batch(2))
    nodes = list(program.graph.graph.nodes)
    assert phases(program, aten.tanh.default).count("backward") == BLOCKS * (LAYERS - 1)
    backward = [i for i, node in enumerate(nodes) if node_phase(node) == "backward"]
    clones = [i for i in backward if nodes[i].target is aten.gelu.default]
    # The last block's are computed again before the first block's gradients are due.
    gradients = [i for i in backward if nodes[i].target is aten.gelu_backward.default]
    assert clones[0] < gradients[0] < clones[-1] < gradients[-1]


@pytest.mark.parametrize("inputs", [[X, Y]])
def test_bits_stay(inputs):
    outcomes = []
    for mark in (checkpoint, lambda x: x):
        model = Two(between=lambda x, mark=mark: mark(F.dropout(x, 0.5)))
        session, _ = started(model, inputs, rule_for(model))
        outcomes.append(run(session, [inputs] * 5))
    assert_same_bits(*outcomes)


def live_bytes(program):
    """Most bytes that values of the program take at once, in the order of its graph."""
    nodes = list(program.graph.graph.nodes)
    returned = set(returned_nodes(program.graph))
    last = {}
    for index, node in enumerate(nodes):
        for value in node.all_input_nodes:
            while is_view(value) or is_getitem(value):
                last[value] = index
                value = value.args[0]
            last[value] = index
    live, most = 0, 0
    dying = {}
    for index, node in enumerate(nodes):
        value = node.meta.get("val")
        owns = node.op == "call_function" and not is_view(node) and "copy_" not in str(node.target)
        if owns and isinstance(value, torch.Tensor):
            live += value.nbytes
            most = max(most, live)
            if node not in returned:
                dying.setdefault(last.get(node, index), []).append(value.nbytes)
        live -= sum(dying.pop(index, ()))
    return most


def test_fewer_bytes_live_at_once():
    plain, marked = (lowered(DeepNetwork(checkpoints=on), batch(512)) for on in (False, True))
    # Kept are one value per block and, of one block, three per layer.
    assert live_bytes(marked) < 0.5 * live_bytes(plain)


def grown(target, rows, *arguments):
    program = Path(deep_training.__file__)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [python(), "-W", "ignore", str(program), "--target", target, "--rows", rows]
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks need Linux")
@pytest.mark.parametrize("name", ["reference", pytest.param("cpu", marks=pytest.mark.compiler)])
def test_the_process_takes_less_memory(name):
    usable(name)
    plain, marked = (grown(name, "2048", *each) for each in ((), ("--checkpoints",)))
    assert marked["bits"] == plain["bits"]
    assert marked["grown"] < 0.6 * plain["grown"]
