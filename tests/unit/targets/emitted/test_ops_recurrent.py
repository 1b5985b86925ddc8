"""Loops over the time steps of recurrent layers in emitted code are those of the interpreter."""

import functools
import math

import pytest
import torch

from abele.ops import gru_loop, lstm_loop, rnn_loop
from helpers.emitted_operators import Case, Compiled

G = torch.Generator().manual_seed(5)


def tensors(steps, batch, units):
    """Inputs of all steps, weight, bias and state; and gradients of states, h and c."""
    shapes = (steps, batch, 4 * units), (4 * units, units), (4 * units,), (batch, units)
    forward = [torch.randn(shape, generator=G) for shape in (*shapes, shapes[-1])]
    forward[1] *= units**-0.5
    gradients = (steps, batch, units), (batch, units), (batch, units)
    return *forward, *(torch.randn(shape, generator=G) for shape in gradients)


def both_ways(*, reverse=False, biased=True, of_states=True, of_last=True):
    """Forward, and backward of what it keeps."""

    def function(inputs, weight, bias, h, c, *gradients):
        kept = lstm_loop.forward(inputs, weight, bias if biased else None, h, c, reverse, True)
        _, cells, gates = kept
        given = [
            each if wanted else None
            for each, wanted in zip(gradients, (of_states, of_last, of_last), strict=True)
        ]
        return *kept, *lstm_loop.backward(*given, weight, cells, gates, reverse)

    return function


def nothing_kept(reverse):
    def function(inputs, weight, bias, h, c, *gradients):
        states, last_c, _ = lstm_loop.forward(inputs, weight, bias, h, c, reverse, False)
        return states, last_c

    return function


def in_other_orders(inputs, weight, bias, h, c, *gradients):
    """Transposed, of every second step, and from the middle of larger tensors."""
    turned = inputs.transpose(0, 1).contiguous().transpose(0, 1)[::2]
    weight = weight.t().contiguous().t()
    state = torch.cat([h, c], 1).chunk(2, 1)
    return lstm_loop.forward(turned, weight, bias, *state, False, True)


def with_numbers(where, number):
    """Sizes for whole vectors and a rest, with one number in another place."""
    given = list(tensors(3, 5, 20))
    given[where].view(-1)[7] = number
    return tuple(given)


def others(gates, steps, batch, units):
    """As ``tensors``, of a layer whose state is h alone."""
    shapes = (steps, batch, gates * units), (gates * units, units), (gates * units,), (batch, units)
    forward = [torch.randn(shape, generator=G) for shape in shapes]
    forward[1] *= units**-0.5
    gradients = (steps, batch, units), (batch, units)
    return *forward, *(torch.randn(shape, generator=G) for shape in gradients)


def gru(*, reverse=False, biased=True, of_states=True, of_last=True, kept=True):
    def function(inputs, weight, bias, h, grad_states, grad_h):
        made = gru_loop.forward(inputs, weight, bias if biased else None, h, reverse, kept)
        if not kept:
            return made[0]
        given = grad_states if of_states else None, grad_h if of_last else None
        return *made, *gru_loop.backward(*given, weight, *made, reverse)

    return function


def rnn(*, relu=False, reverse=False, biased=True, of_states=True, of_last=True):
    def function(inputs, weight, bias, h, grad_states, grad_h):
        bias = bias if biased else None
        states = rnn_loop.forward(inputs, weight, bias, h, relu, reverse)
        given = grad_states if of_states else None, grad_h if of_last else None
        return states, *rnn_loop.backward(*given, weight, states, relu, reverse)

    return function


def turned_weight(inputs, weight, bias, h, grad_states, grad_h):
    """Weight and states in other orders."""
    weight, grad_states = weight.t().contiguous().t(), grad_states.flip(0).transpose(1, 2)
    made = gru_loop.forward(inputs, weight, bias, h, False, True)
    given = grad_states.contiguous().transpose(1, 2), grad_h
    return *made, *gru_loop.backward(*given, weight, *made, False)


def other_with_numbers(gates, where, number):
    given = list(others(gates, 3, 5, 20))
    given[where].view(-1)[7] = number
    return tuple(given)


def of_each_kind(name, *shape, **settings):
    """A case of a GRU and one of each activation."""
    kinds = {"gru": (3, gru), "tanh": (1, rnn), "relu": (1, functools.partial(rnn, relu=True))}
    return {
        f"{kind}, {name}": Case(make(**settings), others(gates, *shape))
        for kind, (gates, make) in kinds.items()
    }


def of_no_numbers():
    functions = {"gru": (3, gru()), "tanh": (1, rnn()), "relu": (1, rnn(relu=True))}
    numbers = {"infinity": math.inf, "minus infinity": -math.inf, "no number": math.nan}
    places = {"inputs": 0, "state": 3, "gradient": 4}
    return {
        f"{kind}, {number} in {place}": Case(
            function, other_with_numbers(gates, places[place], numbers[number])
        )
        for kind, (gates, function) in functions.items()
        for number in numbers
        for place in places
    }


CASES = {
    "odd sizes": Case(both_ways(), tensors(5, 3, 7)),
    "one of everything": Case(both_ways(), tensors(1, 1, 1)),
    "a sample": Case(both_ways(), tensors(4, 1, 24)),
    "samples for two threads": Case(both_ways(), tensors(6, 19, 40)),
    "samples for two threads, turned": Case(both_ways(reverse=True), tensors(6, 19, 40)),
    "weights that no cache holds": Case(both_ways(), tensors(2, 12, 272)),
    "few samples of many units": Case(both_ways(reverse=True), tensors(3, 2, 272)),
    "no bias": Case(both_ways(biased=False), tensors(4, 9, 17)),
    "only the last state": Case(both_ways(of_states=False), tensors(4, 9, 17)),
    "only the states": Case(both_ways(of_last=False), tensors(4, 9, 17)),
    "no gradient": Case(both_ways(of_last=False, of_states=False), tensors(4, 9, 17)),
    "nothing kept": Case(nothing_kept(reverse=False), tensors(5, 10, 18)),
    "nothing kept, turned": Case(nothing_kept(reverse=True), tensors(5, 10, 18)),
    "other orders": Case(in_other_orders, tensors(7, 6, 16)),
    # Gates are 0 and 1 there, and of what is left of gradients rounding decides the sign.
    "large": Case(
        *(both_ways(), tuple(20 * each for each in tensors(3, 5, 20))),
        rtol=1e-4,
        signed_zeros=False,
    ),
    "infinite inputs": Case(both_ways(), with_numbers(0, math.inf)),
    "minus infinity": Case(both_ways(), with_numbers(0, -math.inf)),
    "no number": Case(both_ways(), with_numbers(0, math.nan)),
    "a state that is no number": Case(both_ways(), with_numbers(3, math.nan)),
    "an infinite cell": Case(both_ways(), with_numbers(4, math.inf)),
    "a gradient that is no number": Case(both_ways(), with_numbers(5, math.nan)),
    **of_each_kind("odd sizes", 5, 3, 7),
    **of_each_kind("one of everything", 1, 1, 1),
    **of_each_kind("samples for two threads", 6, 19, 40),
    **of_each_kind("samples for two threads, turned", 6, 19, 40, reverse=True),
    **of_each_kind("weights that no cache holds", 2, 12, 520),
    **of_each_kind("few samples of many units", 3, 2, 272, reverse=True),
    **of_each_kind("no bias", 4, 9, 17, biased=False),
    **of_each_kind("only the last state", 4, 9, 17, of_states=False),
    **of_each_kind("only the states", 4, 9, 17, of_last=False),
    **of_each_kind("no gradient", 4, 9, 17, of_states=False, of_last=False),
    "gru, nothing kept": Case(gru(kept=False), others(3, 5, 10, 18)),
    "gru, nothing kept, turned": Case(gru(kept=False, reverse=True), others(3, 5, 10, 18)),
    "gru, other orders": Case(turned_weight, others(3, 7, 6, 16)),
    **of_no_numbers(),
}


@pytest.fixture(scope="module")
def compiled():
    return Compiled(CASES)


@pytest.mark.compiler
@pytest.mark.parametrize("name", CASES)
def test_as_the_interpreter(compiled, name):
    compiled.agree(name)


@pytest.mark.compiler
def test_code_is_as_long_for_any_number_of_steps(compiled):
    def lines(name):
        return len(compiled.text(name).splitlines())

    assert lines("samples for two threads") == lines("a sample")
    for kind in ("gru", "tanh", "relu"):
        assert lines(f"{kind}, odd sizes") == lines(f"{kind}, samples for two threads")
