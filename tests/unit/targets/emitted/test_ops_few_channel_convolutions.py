"""Convolutions of few channels in emitted code, whatever lies around them."""

import torch
from torch.nn.functional import conv2d

from abele.targets.cpu.emitted.calls import convolutions
from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

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


def test_results_that_lie_otherwise_are_left_to_the_library():
    """Images of one channel lie in both orders; torch's result may have channels last then."""
    graph, settings = torch.fx.Graph(), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    x.meta["val"], weight.meta["val"] = torch.empty(2, 1, 7, 8), torch.empty(5, 1, 3, 3)
    node = graph.call_function(torch.ops.aten.convolution.default, (x, weight, None, *settings))
    node.meta["val"] = torch.empty(2, 5, 7, 8)
    assert convolutions.is_ours(node)
    node.meta["val"] = node.meta["val"].contiguous(memory_format=torch.channels_last)
    assert not convolutions.is_ours(node)
