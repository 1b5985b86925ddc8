"""Convolutions of few channels in emitted code, whatever lies around them."""

import pytest
import torch
from torch.nn.functional import conv2d

from helpers.emitted_operators import Case, Compiled

G = torch.Generator().manual_seed(9)
IMAGES = torch.randn(9, 6, 7, 8, generator=G)
WEIGHT = torch.randn(5, 6, 3, 3, generator=G)

CASES = {
    "in order": Case(
        lambda x, w: conv2d(x, w, padding=1).relu(),
        (IMAGES, WEIGHT),
        gradients=True,
        rtol=1e-4,
        atol=1e-4,
    ),
    # As in a DenseNet: no call of torch, though the gradient is a piece of a larger one.
    "a gradient that is a slice": Case(
        lambda x, w: torch.cat([x, conv2d(x, w, padding=1)], 1).tanh(),
        (IMAGES, WEIGHT),
        gradients=True,
        rtol=1e-4,
        atol=1e-4,
    ),
}


@pytest.fixture(scope="module")
def compiled():
    return Compiled(CASES)


@pytest.mark.compiler
@pytest.mark.parametrize("name", CASES)
def test_as_the_interpreter(compiled, name):
    compiled.agree(name)
