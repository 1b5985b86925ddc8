"""Convolutions that only a pool reads are one call with it, and give what the interpreter gives."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(9)
X = torch.randn(16, 2, 13, 12, generator=G)
SEVERAL = torch.randn(37, 2, 9, 9, generator=G)
FEW = torch.randn(3, 2, 9, 9, generator=G)
WEIGHT = 0.2 * torch.randn(5, 2, 3, 3, generator=G)  # results of about 1
BIAS = torch.randn(5, generator=G)


def activated(x, weight, bias):
    return F.max_pool2d(F.relu(F.conv2d(x, weight, bias)), 2)


JOINED = {
    "an activation between": Case(activated, (X, WEIGHT, BIAS), gradients=True),
    "nothing between": Case(
        lambda x, weight: F.relu(F.max_pool2d(F.conv2d(x, weight, padding=1), 2)),
        (X, WEIGHT),
        gradients=True,
    ),
    "steps of two": Case(
        lambda x, weight, bias: F.max_pool2d(F.conv2d(x, weight, bias, 2, 1).relu(), 2, 2),
        (X, WEIGHT, BIAS),
        gradients=True,
    ),
    # Threads with blocks of their own add up gradients of their own.
    "several blocks of samples": Case(
        activated, (SEVERAL, WEIGHT, BIAS), gradients=True, same_for_threads=False
    ),
    "no gradients": Case(activated, (X, WEIGHT, BIAS)),
    "two of them": Case(
        lambda x, weight, bias, second: activated(activated(x, weight, bias), second, None),
        (X, WEIGHT, BIAS, 0.2 * torch.randn(3, 5, 2, 2, generator=G)),
        gradients=True,
    ),
}


def also_returned(x, weight):
    y = F.relu(F.conv2d(x, weight))
    return F.max_pool2d(y, 2), y / 8


def before_and_after(x, weight):
    y = F.conv2d(x, weight)
    return F.relu(y), y / 8


APART = {
    "no pool": Case(
        lambda x, weight, bias: F.relu(F.conv2d(x, weight, bias)), (X, WEIGHT, BIAS), gradients=True
    ),
    "no pool, few samples": Case(
        lambda x, weight: F.relu(F.conv2d(x, weight)), (FEW, WEIGHT), gradients=True
    ),
    "what goes into the activation is returned": Case(before_and_after, (X, WEIGHT)),
    "few samples": Case(activated, (FEW, WEIGHT, BIAS), gradients=True),
    "its result is returned": Case(also_returned, (X, WEIGHT), gradients=True),
    "indices are returned": Case(
        lambda x, weight: F.max_pool2d(F.conv2d(x, weight), 2, return_indices=True),
        (X, WEIGHT),
        calls={"max_pool2d_with_indices.default": 1},
    ),
    "windows overlap": Case(
        lambda x, weight: F.max_pool2d(F.conv2d(x, weight), 2, 1),
        (X, WEIGHT),
        calls={"max_pool2d_with_indices.default": 1},
    ),
    "a border around": Case(
        lambda x, weight: F.max_pool2d(F.conv2d(x, weight), 2, padding=1),
        (X, WEIGHT),
        calls={"max_pool2d_with_indices.default": 1},
    ),
    "incomplete windows": Case(
        lambda x, weight: F.max_pool2d(F.conv2d(x, weight), 2, ceil_mode=True),
        (X, WEIGHT),
        calls={"max_pool2d_with_indices.default": 1},
    ),
    "another activation": Case(
        lambda x, weight: F.max_pool2d(F.leaky_relu(F.conv2d(x, weight)), 2), (X, WEIGHT), True
    ),
    "two pools": Case(
        lambda x, weight: (F.max_pool2d(y := F.conv2d(x, weight), 2), F.max_pool2d(y * 2, 2)),
        (X, WEIGHT),
        gradients=True,
    ),
}


CASES = {**JOINED, **APART}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "joined"),
    [
        ("no pool", True),
        ("no pool, few samples", True),
        ("its result is returned", True),
        ("what goes into the activation is returned", False),
    ],
)
def test_a_convolution_has_the_activation_that_alone_reads_it(compiled, name, joined):
    text = compiled.text(name)
    assert "abele_conv_forward(" in text
    assert ("abele::relu(" in text) is not joined


@pytest.mark.compiler
@pytest.mark.parametrize("name", [*JOINED, *APART])
def test_which_are_joined(compiled, name):
    text = compiled.text(name)
    assert ("abele_conv_pool(" in text) is (name in JOINED)
    assert ("abele_conv_pool_backward(" in text) is (name in JOINED and JOINED[name].gradients)
