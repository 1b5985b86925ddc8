"""Numbers of Python at the beginning of a function are split off."""

import random
import time

import pytest
import torch

from abele.functions.frames import Frames
from abele.functions.prologue import split

BOX = [0]
MODEL = torch.nn.Linear(2, 1)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
BUFFER = torch.ones(2)


@pytest.fixture
def x():
    return torch.tensor([1.0, 2.0])


def rate(it):
    return 0.1 / (1 + it)


def a_number(x, it):
    lr = rate(it)
    return x * lr


def a_group(x, it):
    """With a text."""
    OPTIMIZER.zero_grad(set_to_none=True)
    for group in OPTIMIZER.param_groups:
        group["lr"] = rate(it)
    return x * 2


def a_counter_in_a_list(x, it):
    BOX[0] += it
    return x * BOX[0]


def an_item_of_a_batch(x, it):
    pair = x, it
    a, number = pair
    scale = number * 2
    return a * scale


def branches(x, it):
    x = x.float()
    if it > 3:
        scale = 2
    elif it > 1:
        scale = 3
    else:
        scale = 4
    for k in range(it):
        scale += k
    return x * scale


def defaults(x, it, *more, scale=3, **named):
    number = it + scale + len(more)
    return x * number + sum(named.values())


def after_a_tensor(x, it):
    y = x * 2
    BOX[0] += it
    return y * BOX[0]


SPLIT = [
    after_a_tensor,
    a_number,
    a_group,
    a_counter_in_a_list,
    an_item_of_a_batch,
    branches,
    defaults,
]


@pytest.mark.parametrize("function", SPLIT)
@pytest.mark.parametrize("it", [0, 2, 5])
def test_both_parts_are_the_function(function, x, it):
    BOX[0] = 1
    expected = function(x, it), OPTIMIZER.param_groups[0]["lr"]
    BOX[0] = 1
    OPTIMIZER.param_groups[0]["lr"] = 0.5
    prologue = split(function, (x, it), {})
    assert prologue is not None
    found = prologue.rest(*prologue((x, it), {})), OPTIMIZER.param_groups[0]["lr"]
    assert torch.equal(expected[0], found[0])
    assert function is not a_group or expected[1] == found[1]


def a_tensor(x, it):
    scale = x.sum() * it
    return x * scale


def a_value(x, it):
    scale = x.sum().item() * it
    return x * scale


def a_global_tensor(x, it):
    scale = it * BUFFER.sum().item()
    return x * scale


def a_random_number(x, it):
    scale = it * random.random()
    return x * scale


def a_clock(x, it):
    scale = it * time.time()
    return x * scale


def after_an_own_variable(x, it):
    it = x.to(torch.float32)
    scale = it
    return x * scale


def only_in_some_case(x, it):
    if it > 1:
        scale = it * 2
    return x * scale


def of_a_gradient(x, it):
    OPTIMIZER.zero_grad()
    scale = 1 if MODEL.weight.grad is None else 2
    return x * scale


def of_a_parameter(x, it):
    for group in OPTIMIZER.param_groups:
        scale = len(group["params"])
        group["lr"] = scale
    return x * 2


def after_a_return(x, it):
    if it > 1:
        return x
    scale = it * 2
    return x * scale


def names_all_variables(x, it):
    scale = it * 2
    return x * scale * len(locals())


@pytest.mark.parametrize(
    "function",
    [
        *(a_tensor, a_value, a_global_tensor, a_random_number, a_clock),
        *(after_an_own_variable, only_in_some_case, of_a_gradient, of_a_parameter),
        *(after_a_return, names_all_variables, torch.sin, lambda x, it: x),
    ],
)
def test_what_is_not_split(function, x):
    assert split(function, (x, 2), {}) is None


def test_a_call_that_fails_is_not_split(x):
    assert split(a_number, (x,), {}) is None


def scaled(x):
    return x * BOX[0]


def counted(x):
    BOX[0] += 1
    return x


def behind_a_reader(x, it):
    y = scaled(x)
    BOX[0] += it
    return y


def behind_a_counter(x, it):
    y = counted(x)
    scale = BOX[0] * it
    return y * scale


def behind_a_print(x, it):
    print(OPTIMIZER.param_groups)
    OPTIMIZER.param_groups[0]["lr"] = rate(it)
    return x


@pytest.mark.parametrize("function", [behind_a_reader, behind_a_counter, behind_a_print])
def test_numbers_stay_behind_code_that_they_depend_on(function, x):
    frames = Frames(None)
    with frames.watching():
        function(x, 1)
    assert split(function, (x, 2), {}, frames) is None
