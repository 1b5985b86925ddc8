"""Programs have plain PyTorch's bits where torch chooses an algorithm by ``requires_grad``."""

import pytest
import torch
from torch import nn

from helpers.runs import flat, started

G = torch.Generator().manual_seed(2)
SEQUENCE = torch.randn(3, 9, 64, generator=G)


class Of(nn.Module):
    """A function of a layer and an input."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x):
        return self.function(self.layer, x) if self.layer is not None else self.function(x)


def same(module, x):
    """Compare inference by a program with plain PyTorch, bit by bit."""
    module.eval()
    session, _ = started(module, (x,))
    with torch.no_grad():
        expected = flat(module(x))
    for one, other in zip(session.step([x]), expected, strict=True):
        assert torch.equal(one, other)


def turned(layer, x):
    return layer(x.transpose(0, 1))


LAYERS = {
    "linear": (turned, lambda: nn.Linear(64, 128)),
    "linear without bias": (turned, lambda: nn.Linear(64, 48, bias=False)),
    "frozen linear": (turned, lambda: nn.Linear(64, 128).requires_grad_(False)),
    "product with a weight": (
        lambda m, x: x.mT.contiguous().mT @ m.weight.t(),
        lambda: nn.Linear(64, 48),
    ),
    "cross-attention": (
        lambda m, x: m(x[:, :7], x, x, need_weights=False)[0],
        lambda: nn.MultiheadAttention(64, 4, batch_first=True),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_transposed_inputs(name):
    function, layer = LAYERS[name]
    torch.manual_seed(0)
    same(Of(function, layer()), SEQUENCE)


@pytest.mark.parametrize("name", ["encoder", "decoder", "attention"])
def test_bits_are_those_of_plain_pytorch_without_its_fast_path(name):
    function, layer = {
        "encoder": (lambda m, x: m(x), nn.TransformerEncoderLayer),
        "decoder": (lambda m, x: m(x[:, 1:], x), nn.TransformerDecoderLayer),
        "attention": (lambda m, x: m(x, x, x, need_weights=False)[0], nn.MultiheadAttention),
    }[name]
    torch.manual_seed(0)
    layer = layer(64, 4, batch_first=True)
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        same(Of(function, layer), SEQUENCE)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
