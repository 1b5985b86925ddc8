"""Max pooling of both layouts, and as programs that run operator by operator do it."""

import math
import operator

import pytest
import torch

from abele.kernels import on_tensors
from helpers.kernel_library import NEEDS_COMPILER, replacement

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

SETTINGS = [2, 2], [2, 2], [0, 0], [1, 1], False
SHAPES = [(1, 8, 2, 2), (2, 8, 6, 10), (3, 5, 4, 8), (2, 21, 8, 4), (1, 1, 6, 6), (2, 24, 200, 100)]


def images(shape, kind="random", layout=torch.channels_last):
    torch.manual_seed(3)
    x = torch.randn(shape) if kind == "random" else torch.randint(-2, 2, shape) * 1.0
    if kind == "special":
        x[torch.rand_like(x) < 0.3] = math.nan
        x[torch.rand_like(x) < 0.2] = -math.inf
    return x.contiguous(memory_format=layout)


# Rows of fewer than eight windows, of eight, and of some more; one channel, eight, and some more.
BOTH = [*SHAPES, (3, 5, 5, 7), (3, 2, 17, 150), (1, 9, 2, 33), (2, 3, 26, 26), (1, 1, 3, 16)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", BOTH, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kind", ["random", "ties", "special"])
def test_a_kernel_equals_torch_in_both_layouts(own, kind, layout, shape, threads):
    x = images(shape, kind, layout)
    wanted, wanted_indices = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    settings = {"layout": layout, "threads": threads}
    y, places = on_tensors.max_pool(own, x, **settings)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert places is None
    y, places = on_tensors.max_pool(own, x, places=True, **settings)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    grad = torch.randn_like(y)
    tensors = on_tensors.max_pool_backward(own, grad, x.shape, places, **settings)
    exact = aten.max_pool2d_with_indices_backward(grad, x, *SETTINGS, wanted_indices)
    assert torch.equal(tensors, exact)


def test_an_image_without_a_window_has_no_gradient(own):
    places = torch.empty(2, 3, 0, 4, dtype=torch.uint8)
    shape = torch.Size((2, 3, 1, 8))
    tensors = on_tensors.max_pool_backward(own, torch.empty(2, 3, 0, 4), shape, places)
    assert torch.equal(tensors, torch.zeros(shape))


def test_a_tensor_of_another_layout_is_refused(own):
    with pytest.raises(ValueError, match=r"The kernels want torch.channels_last, not strides"):
        on_tensors.max_pool(own, torch.randn(2, 3, 4, 4), layout=torch.channels_last)


def nodes(shape, settings=SETTINGS, *, read=True, shown=False, dtype=torch.float32):
    """A pool and, where ``read``, its backward; where ``shown``, the indices are a result too."""
    graph = torch.fx.Graph()
    x, grad = graph.placeholder("x"), graph.placeholder("grad")
    x.meta["val"] = torch.empty(shape, dtype=dtype)
    pool = graph.call_function(aten.max_pool2d_with_indices.default, (x, *settings))
    results = [graph.call_function(operator.getitem, (pool, 0))]
    if not read:
        return pool, None
    indices = graph.call_function(operator.getitem, (pool, 1))
    back = aten.max_pool2d_with_indices_backward.default
    backward = graph.call_function(back, (grad, x, *settings, indices))
    graph.output([*results, backward, indices] if shown else [*results, backward])
    return pool, backward


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["random", "ties", "special"])
def test_values_and_gradients_are_torchs_to_the_bit(own, kind, shape):
    pool, backward = (replacement(node, own) for node in nodes(shape))
    x = images(shape, kind)
    y, places = pool(x, *SETTINGS)
    wanted, indices = aten.max_pool2d_with_indices(x, *SETTINGS)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert places.dtype is torch.uint8
    for grad in (torch.randn_like(y), torch.randn(y.shape)):  # also in the default order
        exact = aten.max_pool2d_with_indices_backward(grad, x, *SETTINGS, indices)
        assert torch.equal(backward(grad, x, *SETTINGS, places), exact)


def test_without_backward_no_places_are_kept(own):
    pool = replacement(nodes((2, 8, 6, 10), read=False)[0], own)
    x = images((2, 8, 6, 10))
    y, places = pool(x, *SETTINGS)
    assert places is None
    assert torch.equal(y, aten.max_pool2d_with_indices(x, *SETTINGS)[0])


def test_images_in_the_default_order_are_the_librarys(own):
    pool, backward = (replacement(node, own) for node in nodes((2, 8, 6, 10)))
    x = images((2, 8, 6, 10)).contiguous()
    y, indices = pool(x, *SETTINGS)
    assert y.is_contiguous()
    assert indices.dtype is torch.int64
    exact = aten.max_pool2d_with_indices_backward(y, x, *SETTINGS, indices)
    assert torch.equal(backward(y, x, *SETTINGS, indices), exact)


@pytest.mark.parametrize(
    "settings",
    [
        {"shown": True},
        {"dtype": torch.float64},
        {"shape": (2, 8, 7, 10), "settings": ([2, 2], [2, 2], [0, 0], [1, 1], True)},
        {"settings": ([3, 3], [2, 2], [0, 0], [1, 1], False)},
        {"settings": ([2, 2], [1, 1], [0, 0], [1, 1], False)},
        {"settings": ([2, 2], [2, 2], [1, 1], [1, 1], False)},
        {"settings": ([2, 2], [2, 2], [0, 0], [2, 2], False)},
    ],
    ids=str,
)
def test_other_pools_stay_the_librarys(own, settings):
    assert replacement(nodes(**{"shape": (2, 8, 6, 10), **settings})[0], own) is None
