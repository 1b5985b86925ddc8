"""The comparison of compiled functions with plain ones finds what it is made to find."""

import random

import pytest
import torch

from abele.functions.decorator import Function
from helpers.compiled_functions import Task, batch, compiles, same_as_plain, stays_eager

DIFFERENCES = {
    "result": (lambda task: setattr(task, "result", 1), r"call 2\.returned"),
    "parameter": (lambda task: task.model.bias.data.add_(1e-6), r"call 2\.state\.model\.bias"),
    "flag": (lambda task: task.model.bias.requires_grad_(False), r"bias\.requires_grad"),
    "mode": (lambda task: task.model.eval(), r"model\.training"),
    "number": (lambda task: task.optimizer.param_groups[0].update(lr=1), r"optimizer.*lr"),
    "stream": (lambda task: torch.rand(1), r"call 2\.outside"),
    "stream of Python": (lambda task: random.random(), r"call 2\.outside"),
    "attribute": (lambda task: setattr(task, "count", 1), r"state\.keys"),
}


@pytest.mark.parametrize(("differ", "path"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_is_found(differ, path):
    def build(wrap):
        task = Task()
        step = wrap(lambda x: x * 2)

        def call(i):
            step(batch(i)[0])
            if isinstance(step, Function) and i == 2:
                differ(task)
            return vars(task).get("result")

        return call, lambda: task

    with pytest.raises(AssertionError, match=path):
        same_as_plain(build, 3)


def case(wrap):
    run = wrap(lambda x: x * 2)
    return lambda i: run(batch(i)[0]), list


def refused(wrap):
    run = wrap(lambda x: [*numbers, x])
    numbers = iter([])
    return lambda i: run(batch(i)[0]), list


def test_the_outcome_is_compared():
    compiles(programs=1)(case)()
    with pytest.raises(AssertionError, match="1 program on reference"):
        compiles(programs=2)(case)()
    with pytest.raises(AssertionError, match="1 program on reference"):
        stays_eager(match="")(case)()
    stays_eager(match="an iterator")(refused)()
    with pytest.raises(AssertionError, match="plain PyTorch"):
        compiles(programs=0)(refused)()
    with pytest.raises(AssertionError, match="an iterator"):
        stays_eager(match="another reason")(refused)()
