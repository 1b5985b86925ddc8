"""Recurrent layers are one operator where that has plain PyTorch's bits, and their steps else."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from abele.ops import lstm, recurrent
from abele.program import all_nodes
from helpers.runs import assert_same_bits, captured, rule_for, run, run_eagerly, started

STEPS, BATCH, WIDTH = 9, 4, 5


class Model(nn.Module):
    """A layer, what becomes of its states, and a loss."""

    def __init__(self, kind=nn.GRU, **settings):
        super().__init__()
        self.inner = kind(WIDTH, WIDTH, **settings)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, wanted):
        return nn.functional.mse_loss(self.states(x), wanted)

    def states(self, x):
        return self.inner(x)[0]


class Twice(Model):
    """Two calls share all weights."""

    def states(self, x):
        states, last = self.inner(x)
        return self.inner(states, last)[0]


class Penalty(Model):
    """Something else reads the weight of the state."""

    def states(self, x):
        return super().states(x) + self.inner.weight_hh_l0.pow(2).mean()


class OwnState(Model):
    """The first state is trained, and read by others."""

    def states(self, x):
        first = self.linear(x[0])[None]
        return self.inner(x, first)[0] + first


class Residual(Model):
    """What goes in is read by others, too."""

    def states(self, x):
        x = self.linear(x)
        return x + self.inner(x)[0].unflatten(-1, (-1, WIDTH)).sum(-2)


class Again(Model):
    """Backward computes the layer again."""

    def states(self, x):
        return checkpoint(lambda each: self.inner(each)[0], self.linear(x), use_reentrant=False)


class GradientOfGradient(Model):
    def states(self, x):
        states, weight = super().states(x), self.inner.weight_ih_l0
        (made,) = torch.autograd.grad(states.sum(), weight, create_graph=True)
        return states + made.pow(2).mean()


# Torch compiles functions for forward derivatives when the first of them is asked for.
derivatives = pytest.mark.filterwarnings("ignore:`torch.jit.script")


class ForwardDerivative(Model):
    def states(self, x):
        states, derivative = torch.func.jvp(super().states, (x,), (torch.ones_like(x),))
        return states + derivative


class Frozen(Model):
    """Only the layer before is trained."""

    def __init__(self, kind):
        super().__init__(kind)
        self.inner.requires_grad_(False)

    def states(self, x):
        return self.inner(self.linear(x))[0]


# The model and its arguments, and how many layers are operators.
WHOLE = {
    "gru": (lambda: Model(), 1),
    "rnn": (lambda: Model(nn.RNN), 1),
    "relu": (lambda: Model(nn.RNN, nonlinearity="relu"), 1),
    "lstm": (lambda: Model(nn.LSTM), 1),
    "lstm, batch first": (lambda: Model(nn.LSTM, batch_first=True, bias=False), 1),
    "lstms, both directions": (lambda: Residual(nn.LSTM, num_layers=2, bidirectional=True), 4),
    "three layers": (lambda: Model(num_layers=3), 3),
    "residual": (lambda: Residual(), 1),
    "residual, both directions": (lambda: Residual(bidirectional=True), 2),
    "residual, both directions of an rnn": (lambda: Residual(nn.RNN, bidirectional=True), 2),
    "own state": (lambda: OwnState(), 1),
    "own state of an rnn": (lambda: OwnState(nn.RNN), 1),
    "frozen gru": (lambda: Frozen(nn.GRU), 1),
    "frozen rnn": (lambda: Frozen(nn.RNN), 1),
    "checkpoint": (lambda: Again(), 2),
    "checkpoint of an lstm": (lambda: Again(nn.LSTM), 2),
}
IN_STEPS = {
    "called twice": lambda: Twice(),
    "penalty": lambda: Penalty(nn.RNN),
    "gradient of a gradient": lambda: GradientOfGradient(),
    "forward derivative": lambda: ForwardDerivative(),
}
EVERY = {**{name: make for name, (make, _) in WHOLE.items()}, **IN_STEPS}


def batches(steps=STEPS):
    generator = torch.Generator().manual_seed(0)
    shape = steps, BATCH, WIDTH
    return [tuple(torch.randn(shape, generator=generator) for _ in range(2)) for _ in range(2)]


def count(model, batch):
    (program,) = captured(model, batch, rule=rule_for(model, "sgd")).programs
    targets = recurrent.forward, lstm.forward
    return sum(node.target in targets for node in all_nodes(program.graph))


@derivatives
@pytest.mark.parametrize("name", EVERY)
def test_bits_are_plain_pytorchs(name):
    torch.manual_seed(0)
    model, data = EVERY[name](), batches()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    ours = run(started(model, data[0], rule_for(model, "sgd"))[0], data)
    assert_same_bits(ours, run_eagerly(plain, optimizer, data))


@pytest.mark.parametrize("name", WHOLE)
def test_layers_are_operators(name):
    make, layers = WHOLE[name]
    assert count(make(), batches()[0]) == layers


@derivatives
@pytest.mark.parametrize("name", IN_STEPS)
def test_layers_are_steps_where_operators_would_have_other_bits(name):
    assert count(IN_STEPS[name](), batches()[0]) == 0


def test_layers_of_few_steps_are_steps():
    assert count(Model(), batches(steps=7)[0]) == 0
    assert count(Model(), batches(steps=8)[0]) == 1


def test_other_types_are_steps():
    (program,) = captured(nn.GRU(WIDTH, 3).double(), [batches()[0][0].double()]).programs
    assert not [n for n in all_nodes(program.graph) if n.target is recurrent.forward]


def test_dropout_between_layers_is_drawn():
    torch.manual_seed(0)
    model = Model(num_layers=2, dropout=0.5)
    assert count(model, batches()[0]) == 2
    session, _ = started(model, batches()[0], rule_for(model, "sgd"))
    losses = {float(session.step(batches()[0])[0]) for _ in range(3)}
    assert len(losses) == 3
