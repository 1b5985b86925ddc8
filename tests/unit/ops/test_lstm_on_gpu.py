"""What an LSTM hands to cuDNN, on the host; tests/conformance/test_gpu.py runs cuDNN."""

import pytest
import torch

from abele.ops import lstm


@pytest.mark.parametrize("numbers", [1, 64, 70])
def test_what_is_kept_comes_apart_again(numbers):
    packed, reserved = torch.randn(numbers, 1), torch.arange(50, dtype=torch.uint8)
    kept = lstm._joined(packed, reserved)
    assert kept.dtype is torch.uint8
    weights, rest = lstm._apart(kept, numbers)
    assert torch.equal(weights, packed.view(-1))
    assert torch.equal(rest, reserved)
    assert rest.storage_offset() % 256 == 0


def test_without_biases_the_library_is_given_zeros():
    w_ih, w_hh = torch.randn(8, 3), torch.randn(8, 2)
    *weights, first, second = lstm._weights_of_gpu(w_ih, w_hh, w_ih, w_hh, False)
    assert weights == [w_ih, w_hh]
    assert torch.equal(first, torch.zeros(8))
    assert torch.equal(second, torch.zeros(8))
    given = [w_ih, w_hh, torch.ones(8), torch.ones(8)]
    assert lstm._weights_of_gpu(*given, True) == given
