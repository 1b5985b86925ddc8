"""Loops over the time steps of recurrent layers in emitted code are those of the interpreter."""

import math

import pytest
import torch

from abele.ops import recurrent_loop
from abele.ops.recurrent_cells import CELLS
from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(5)


def tensors(kind, steps, batch, units):
    """Inputs of all steps, weight, bias and state; and gradients of states, h and c."""
    width = CELLS[kind].gates * units
    state = [(batch, units)] * CELLS[kind].states
    forward = [
        torch.randn(shape, generator=G)
        for shape in ((steps, batch, width), (width, units), (width,), *state)
    ]
    forward[1] *= units**-0.5
    gradients = (steps, batch, units), *state
    return *forward, *(torch.randn(shape, generator=G) for shape in gradients)


def loop(kind, *, reverse=False, biased=True, of_states=True, of_last=True, kept=True, change=None):
    """Forward, and backward of what it keeps."""
    count = CELLS[kind].states

    def function(*given):
        inputs, weight, bias, *others = given if change is None else change(*given)
        state, gradients = [*others[:count], None][:2], [*others[count:], None][:3]
        given = inputs, weight, bias if biased else None, *state, reverse, kept
        made = dict(
            zip(recurrent_loop.results(kind), recurrent_loop.forward(kind, *given), strict=True)
        )
        if not kept:
            made.pop("gates", None)  # of any step
            return tuple(made.values())
        asked = of_states, of_last, of_last
        gradients = [each if on else None for each, on in zip(gradients, asked, strict=True)]
        read = [made.get(name) for name in ("states", "cells", "gates")]
        read[0] = read[0] if CELLS[kind].reads_h else None
        return *made.values(), *recurrent_loop.backward(kind, *gradients, weight, *read, reverse)

    return function


def in_other_orders(inputs, weight, bias, *others):
    """Transposed, of every second step, and from the middle of larger tensors."""
    inputs = inputs.transpose(0, 1).contiguous().transpose(0, 1)[::2]
    weight = weight.t().contiguous().t()
    count = (len(others) - 1) // 2
    state = torch.cat(others[:count], 1).chunk(count, 1)
    grad_states = others[count][::2].transpose(1, 2).contiguous().transpose(1, 2)
    return inputs, weight, bias, *state, grad_states, *others[count + 1 :]


def with_number(kind, where, number):
    """Sizes for whole vectors and a rest, with one number in another place."""
    given = list(tensors(kind, 3, 5, 20))
    given[where].view(-1)[7] = number
    return tuple(given)


SIZES = {
    "odd sizes": ((5, 3, 7), {}),
    "one of everything": ((1, 1, 1), {}),
    "a sample": ((4, 1, 24), {}),
    "samples for two threads": ((6, 19, 40), {}),
    "samples for two threads, turned": ((6, 19, 40), {"reverse": True}),
    "weights that no cache holds": ((2, 12, 520), {}),
    "few samples of many units": ((3, 2, 272), {"reverse": True}),
    "no bias": ((4, 9, 17), {"biased": False}),
    "only the last state": ((4, 9, 17), {"of_states": False}),
    "only the states": ((4, 9, 17), {"of_last": False}),
    "no gradient": ((4, 9, 17), {"of_states": False, "of_last": False}),
    "nothing kept": ((5, 10, 18), {"kept": False}),
    "nothing kept, turned": ((5, 10, 18), {"kept": False, "reverse": True}),
    "other orders": ((7, 6, 16), {"change": in_other_orders}),
}
NUMBERS = {"infinity": math.inf, "minus infinity": -math.inf, "no number": math.nan}
CASES = {
    f"{kind}, {name}": Case(loop(kind, **settings), tensors(kind, *sizes))
    for kind in CELLS
    for name, (sizes, settings) in SIZES.items()
}
CASES |= {
    f"{kind}, {name} in {place}": Case(
        # An infinite h saturates all gates; the gradient that rounding leaves has either sign.
        *(loop(kind), with_number(kind, where, number)),
        signed_zeros=(kind, place) != ("lstm", "state"),
    )
    for kind in CELLS
    for name, number in NUMBERS.items()
    for place, where in {"inputs": 0, "state": 3, "gradient": 3 + CELLS[kind].states}.items()
}
CASES["lstm, infinity in the cell"] = Case(loop("lstm"), with_number("lstm", 4, math.inf))
# Gates are 0 and 1 there, and of what is left of gradients rounding decides the sign.
CASES["lstm, large"] = Case(
    loop("lstm"),
    tuple(20 * each for each in tensors("lstm", 3, 5, 20)),
    rtol=1e-4,
    signed_zeros=False,
)


@pytest.mark.compiler
def test_code_is_as_long_for_any_number_of_steps(compiled):
    def lines(name):
        return len(compiled.text(name).splitlines())

    for kind in CELLS:
        assert lines(f"{kind}, odd sizes") == lines(f"{kind}, samples for two threads")
