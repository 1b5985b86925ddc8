"""Our depthwise convolutions are those of float64, for any sizes and number of threads."""

import ctypes
import math

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import binding
from helpers.kernel_library import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

aten = torch.ops.aten


def numbers(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Depthwise:
    """One convolution, with its operands, by our kernel and by torch."""

    def __init__(self, own, shape, size, step, pad):
        self.library, self.shape = own, shape
        channels = shape[1]
        self.x = numbers(*shape, seed=1)
        self.weight, self.bias = numbers(channels, 1, size, size, seed=2), numbers(channels, seed=3)
        self.settings = [step] * 2, [pad] * 2, [1, 1], False, [0, 0], channels
        self.sizes = binding.Depthwise(*shape, size, step, pad, pad)
        out = [(n + 2 * pad - size) // step + 1 for n in shape[2:]]
        self.grad = numbers(*shape[:2], *out, seed=4)

    def forward(self, *, bias=True):
        y = torch.full_like(self.grad, math.nan)
        pointer = self.bias.data_ptr() if bias else None
        given = self.x.data_ptr(), self.weight.data_ptr(), pointer, y.data_ptr()
        self.library.abele_depthwise_forward(ctypes.byref(self.sizes), *given, 1)
        return y

    def backward(self, mask=(True, True, True)):
        wanted = zip((self.x, self.weight, self.bias), mask, strict=True)
        results = [torch.full_like(each, math.nan) if want else None for each, want in wanted]
        pointers = [None if each is None else each.data_ptr() for each in results]
        given = self.grad.data_ptr(), self.x.data_ptr(), self.weight.data_ptr(), *pointers
        self.library.abele_depthwise_backward(ctypes.byref(self.sizes), *given, 1)
        return results

    def torchs(self, dtype):
        grad, x, weight, bias = (
            each.to(dtype) for each in (self.grad, self.x, self.weight, self.bias)
        )
        y = aten.convolution(x, weight, bias, *self.settings)
        mask = [True] * 3
        rest = aten.convolution_backward(grad, x, weight, [len(bias)], *self.settings, mask)
        return y, *rest


@pytest.mark.parametrize("mask", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)], ids=str)
def test_only_wanted_gradients_are_computed(own, mask):
    conv = Depthwise(own, (2, 3, 9, 11), 3, 1, 1)
    for mine, all_of_them in zip(conv.backward(mask=mask), conv.backward(), strict=True):
        assert mine is None or torch.equal(mine, all_of_them)


def test_without_a_bias(own):
    conv = Depthwise(own, (2, 3, 9, 11), 3, 1, 1)
    conv.bias.zero_()
    assert torch.equal(conv.forward(bias=False), conv.forward())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [(0, 0), (8, 10), (4, 5)], ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_what_is_not_finite_reaches_what_it_reaches_in_torch(own, value, place, step):
    conv = Depthwise(own, (2, 3, 9, 11), 3, step, 1)
    conv.x[0, 1][place] = value
    conv.grad[1, 2, 0, 0] = value
    ours, torchs = (conv.forward(), *conv.backward()), conv.torchs(torch.float32)
    y, x, weight, bias = zip(ours, torchs, strict=True)
    for mine, theirs in (y, x, bias):
        assert torch.equal(mine.isfinite(), theirs.isfinite())
    finite, expected = (each.isfinite() for each in weight)
    assert torch.equal(finite.flatten(1).all(1), expected.flatten(1).all(1))
    assert not (finite & ~expected).any()  # at a border it meets zeros that torch leaves out


@pytest.mark.parametrize("kernel", [(4, 1, 1), (3, 3, 1), (3, 1, 3), (9, 1, 4)], ids=str)
def test_what_there_is_no_code_for_is_said(own, kernel):
    conv = Depthwise(own, (1, 1, 12, 12), *kernel)
    pointers = [each.data_ptr() for each in (conv.x, conv.weight, conv.bias, conv.grad)]
    before = conv.grad.clone()
    with pytest.raises(CorruptExecutable, match="no code"):
        own.abele_depthwise_forward(ctypes.byref(conv.sizes), *pointers, 1)
    assert torch.equal(conv.grad, before)
