"""Recurrent layers: interpreted with plain PyTorch's bits, compiled as a loop."""

import functools

import pytest
import torch
from torch import nn

from abele import _torch, passes
from abele.ops import lstm, recurrent, recurrent_loop
from abele.passes._edit import editable, finished, inserted
from abele.passes.of_lowerings.recurrent import recurrent_loops
from abele.program import all_nodes
from abele.targets.reference import Interpreter, Reference
from helpers.runs import (
    assert_close_by_norm,
    captured,
    rule_for,
    run,
    started,
)

STEPS = 9


class InLoops(Interpreter):
    passes = (recurrent_loops,)


class Apart(Reference):
    """Layers are taken apart by a lowering's pass, and what comes of it is interpreted."""

    def __init__(self, lowering):
        self.lowerings = (lowering,)


class Recurrent(nn.Module):
    """A layer with a loss inside."""

    def __init__(self, kind, **settings):
        super().__init__()
        self.inner = kind(3, 4, **settings)

    def forward(self, sequences, wanted):
        return nn.functional.mse_loss(self.inner(sequences)[0], wanted)


class OfState(Recurrent):
    """Only what remains after the last step counts."""

    def forward(self, sequences, wanted):
        _, last = self.inner(sequences)
        last = last[0] + last[1] if isinstance(last, tuple) else last
        return nn.functional.mse_loss(last[0], wanted[0])


KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": functools.partial(nn.RNN, nonlinearity="relu"),
}
SETTINGS = {
    "plain": (Recurrent, {}),
    "batch first": (Recurrent, {"batch_first": True}),
    "both directions": (Recurrent, {"bidirectional": True}),
    "two layers": (Recurrent, {"num_layers": 2}),
    "two layers in both directions": (Recurrent, {"num_layers": 2, "bidirectional": True}),
    "no biases": (Recurrent, {"bias": False}),
    "last state": (OfState, {}),
}
# A layer without gates differs from one with gates in its cell alone.
CASES = [
    pytest.param(
        kind,
        name,
        marks=[pytest.mark.thorough] if kind in ("tanh", "relu") and name != "plain" else [],
    )
    for kind in KINDS
    for name in SETTINGS
]


def batches(width):
    generator = torch.Generator().manual_seed(0)
    shapes = (STEPS, STEPS, 3), (STEPS, STEPS, width)
    return [tuple(torch.randn(s, generator=generator) for s in shapes) for _ in range(3)]


def layers(program):
    targets = [way for each in (lstm, recurrent) for way in (each.forward, each.backward)]
    return [n for n in all_nodes(program.graph) if n.target in targets]


def model_of(kind, name):
    make, settings = SETTINGS[name]
    torch.manual_seed(0)
    return make(KINDS[kind], **settings), batches(8 if settings.get("bidirectional") else 4)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_they_train_as_the_layer_does(kind, name):
    model, data = model_of(kind, name)
    rule = rule_for(model, "sgd")
    whole, apart = (
        started(model, data[0], rule, target=each)[0] for each in ("reference", Apart(InLoops()))
    )
    assert layers(whole.executable.programs[0])
    assert not layers(apart.executable.programs[0])
    assert_close_by_norm(run(apart, data), run(whole, data), 1e-5)


def test_a_program_without_layers_is_returned_as_it_is():
    model = nn.Sequential(nn.Linear(3, 4))
    (program,) = captured(model, [torch.randn(2, 3)]).programs
    assert recurrent_loops(program) is program


@pytest.mark.parametrize("kind", KINDS)
def test_loops_make_a_program_as_large_for_any_number_of_steps(kind):
    sizes = set()
    for steps in (9, 20):
        (program,) = captured(Last(KINDS[kind]), [torch.randn(steps, 2, 3)]).programs
        after = passes.run_only(passes.run(program), (recurrent_loops,))
        sizes.add(len(after.graph.graph.nodes))
    assert len(sizes) == 1


def test_inference_keeps_nothing_of_its_steps():
    (program,) = captured(Last(), [torch.randn(3, 2, 3)]).programs
    after = passes.run_only(passes.run(program), (recurrent_loops,))
    (loop,) = after.graph.graph.find_nodes(op="call_function", target=recurrent_loop.forward)
    assert loop.meta["val"][2].shape == (1, 2, 16)


def forgetting(program, kind):
    """The same program, whose backward does not read what forward kept."""
    operators, place = (lstm, 13) if kind == "lstm" else (recurrent, 7)
    graph = editable(program)
    (backward,) = graph.graph.find_nodes(op="call_function", target=operators.backward)
    kept = backward.args[place]
    zeros = inserted(backward, torch.ops.aten.zeros_like.default, kept)
    backward.replace_input_with(kept, zeros)
    return finished(program, graph)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_whose_forward_is_elsewhere_computes_it_again(kind):
    model, data = model_of(kind, "plain")
    (program,) = captured(model, data[0], rule=rule_for(model, "sgd")).programs
    before = passes.run(program)
    variants = before, forgetting(before, kind)
    after, again = (passes.run_only(each, (recurrent_loops,)) for each in variants)
    loops = again.graph.graph.find_nodes(op="call_function", target=recurrent_loop.forward)
    assert len(loops) == 2
    inputs = [torch.rand(tuple(node.meta["val"].shape)) for node in after.placeholders()]
    results = []
    for each in (after, again):
        values = [value.clone() for value in inputs]  # parameters become what they are afterwards
        results.append((Interpreter().compile(each).run(list(values)), values))
    torch.testing.assert_close(*results, rtol=0, atol=0)


class Last(nn.Module):
    """What a layer has after the last step."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.inner = kind(3, 4)

    def forward(self, x):
        return self.inner(x)[0][-1]


def test_other_types_stay_in_torchs_own_form():
    (program,) = captured(Last().double(), [torch.randn(3, 2, 3).double()]).programs
    assert not layers(program)


def test_without_the_library_there_is_no_layer():
    with _torch.without_onednn():
        (program,) = captured(Last(), [torch.randn(3, 2, 3)]).programs
    assert not layers(program)
    (program,) = captured(Last(), [torch.randn(3, 2, 3)]).programs
    assert layers(program)


@pytest.mark.parametrize("steps", [1, 16, 40])
def test_it_is_known_what_the_library_keeps(steps):
    x, state = torch.randn(steps, 4, 3), torch.zeros(4, 8)
    weights = torch.randn(32, 3), torch.randn(32, 8), torch.zeros(32), torch.zeros(32)
    kept = lstm.forward(x, *weights, state, state, False, True, True)[3]
    estimated = lstm._kept_bytes(steps, 4, 3, 8)
    assert abs(estimated - kept.numel()) <= 0.1 * kept.numel()
    if steps <= 16:
        assert estimated == kept.numel()
