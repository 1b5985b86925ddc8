"""The kernels of programs that run operator by operator, against torch in double precision."""

import functools

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele.errors import CorruptExecutable
from abele.kernels import binding
from abele.ops import norm_activation
from abele.ops.fused_updates import adam, sgd
from abele.targets.cpu.op_by_op import norms, updates
from helpers.kernel_library import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

MOMENTUM, EPS = 0.3, 1e-5
SHAPES = [(2, 8, 33, 17), (3, 5, 7, 9), (2, 24, 40, 61), (1, 300, 3, 5), (2, 1, 6, 6)]


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(7)


def inputs(shape, *, scale=1.0, offset=0.0):
    x = (torch.randn(shape) * 2 + 3).contiguous(memory_format=torch.channels_last)
    channels = shape[1]
    weight, bias = torch.rand(channels) + 0.5, torch.randn(channels) * 0.3
    mean, var = torch.randn(channels), torch.rand(channels) + 0.5
    return x, weight * scale, bias + offset, mean, var


def exactly(x, weight, bias, mean, var, slope, grad):
    """The same in double: y, new statistics and gradients."""
    x, weight, bias = (each.double().requires_grad_() for each in (x, weight, bias))
    mean, var = mean.double(), var.double()
    y = F.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS)
    y = F.leaky_relu(y, slope)
    grads = torch.autograd.grad(y, [x, weight, bias], grad.double())
    return [y.detach(), mean, var, *grads]


def ours(own, x, weight, bias, mean, var, slope, grad, overwrite=False, rounded=None):
    in_16_bits = rounded is not None
    forward = functools.partial(norms.norm_activation, in_16_bits, own, overwrite)
    backward = functools.partial(norms.norm_activation_backward, own, overwrite)
    output = forward(x.clone(), weight, bias, mean, var, MOMENTUM, EPS, slope)
    y, kept, statistics, new_mean, new_var = output
    y = y.clone()
    kept = kept.to(rounded).float() if in_16_bits else kept
    grads = backward(grad.clone(), kept, weight, bias, statistics, slope)
    return [y, new_mean, new_var, *grads]


def error(actual, exact):
    return ((actual.double() - exact).norm() / exact.norm().clamp_min(1e-6)).item()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slope", [0.01, 0.0, 1.0])
def test_a_layer_is_exact_to_a_millionth(own, shape, slope):
    values, grad = inputs(shape), torch.randn(shape)
    grad = grad.contiguous(memory_format=torch.channels_last)
    exact = exactly(*values, slope, grad)
    for overwrite in (False, True):
        result = ours(own, *values, slope, grad, overwrite)
        for value, wanted in zip(result, exact, strict=True):
            assert error(value, wanted) < 2e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slope", [0.01, 0.0, 1.0])
@pytest.mark.parametrize("vectors", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_of_bfloat16_images_is_rounded_once(own, shape, slope, vectors):
    x, *parameters = inputs(shape)
    values = [x.bfloat16(), *(each.to(vectors) for each in parameters)]
    grad, added = (
        torch.randn(shape).bfloat16().contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    )
    exact = exactly(*values, slope, grad)
    summed = exactly_of_sum(*values, added, slope, grad)
    for overwrite in (False, True):
        of_sum = ours_of_sum(own, *values, added, slope, [grad], overwrite)
        result = ours(own, *values, slope, grad, overwrite)
        assert [each.dtype for each in result] == 2 * [torch.bfloat16, vectors, vectors]
        for value, wanted in (*zip(result, exact, strict=True), *zip(of_sum, summed, strict=True)):
            assert error(value, wanted) < torch.finfo(torch.bfloat16).eps


def test_weights_and_statistics_may_be_columns(own):
    """As those of a norm that takes its parameters out of a table, one column for each domain."""
    shape = (2, 8, 12, 12)
    x, *vectors = inputs(shape)
    columns = [torch.stack([torch.full_like(each, 1e3), each], 1)[:, 1] for each in vectors]
    added, grad = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(2)
    )
    run = functools.partial(norms.scale_shift_activation, own, False)
    for one, other in (
        (ours(own, x, *v, 0.01, grad) for v in (vectors, columns)),
        (ours_of_sum(own, x, *v, added, 0.01, [grad]) for v in (vectors, columns)),
        ([run(x, *v[:2], 0.01)] for v in (vectors, columns)),
    ):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(("scale", "offset"), [(0.0, 0.0), (1e-20, 0.0), (1e-4, 1.0), (-1.0, 0.0)])
def test_weights_that_lose_the_input_keep_it(own, scale, offset):
    """From y alone nothing could be recovered where the weight is zero or drowns in the bias."""
    shape = (2, 8, 12, 12)
    values, grad = inputs(shape, scale=scale, offset=offset), torch.randn(shape)
    grad = grad.contiguous(memory_format=torch.channels_last)
    exact = exactly(*values, 0.01, grad)
    for value, wanted in zip(ours(own, *values, 0.01, grad, True), exact, strict=True):
        assert error(value, wanted) < 5e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.1, 5.0), (1.0, 50.0), (1e-6, 0.0)])
def test_what_is_kept_in_16_bits_recovers_the_input(own, scale, offset, dtype):
    values, grad = inputs((2, 8, 12, 12), scale=scale, offset=offset), torch.randn(2, 8, 12, 12)
    grad = grad.contiguous(memory_format=torch.channels_last)
    exact = exactly(*values, 1.0, grad)
    results = ours(own, *values, 1.0, grad, rounded=dtype)
    for value, wanted in zip(results, exact, strict=True):
        assert error(value, wanted) < 2 * torch.finfo(dtype).eps


def test_a_large_mean_does_not_swallow_the_variance(own):
    x, weight, bias, mean, var = inputs((2, 8, 64, 64))
    x = (x + 1e4).contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(x)
    # No activation: at its kink the last bit of float32 decides on a whole gradient.
    exact = exactly(x, weight, bias, mean, var, 1.0, grad)
    result = ours(own, x, weight, bias, mean, var, 1.0, grad)
    for value, wanted in zip(result, exact, strict=True):
        assert error(value, wanted) < 3e-4  # a mean of 1e4 is known to 5e-4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_not_finite_shows(own, bad, dtype):
    values, grad = [each.to(dtype) for each in inputs((1, 8, 8, 8))], torch.randn(1, 8, 8, 8)
    values[0][0, 3, 2, 2], grad = bad, grad.to(dtype)
    y, mean, *_ = ours(own, *values, 0.01, grad)
    assert not y[:, 3].isfinite().any()
    assert not mean[3].isfinite()
    assert y[:, 4].isfinite().all()


def exactly_of_sum(x, weight, bias, mean, var, added, slope, grad):
    """The same in double where something is added before the activation."""
    leaves = [each.double().requires_grad_() for each in (x, weight, bias, added)]
    mean, var = mean.double(), var.double()
    y = F.batch_norm(leaves[0], mean, var, *leaves[1:3], True, MOMENTUM, EPS) + leaves[3]
    y = F.leaky_relu(y, slope)
    return [y.detach(), mean, var, *torch.autograd.grad(y, leaves, grad.double())]


def ours_of_sum(own, x, weight, bias, mean, var, added, slope, grads, overwrite=False):
    forward = functools.partial(norms.norm_sum_activation, own, overwrite)
    backward = functools.partial(norms.norm_sum_activation_backward, own, overwrite)
    parameters = (x, weight, bias, mean, var, added.clone())
    y, statistics, new_mean, new_var = forward(*parameters, MOMENTUM, EPS, slope)
    grad, more = grads[0].clone(), grads[1] if len(grads) > 1 else None
    of_added, *rest = backward(grad, more, y, x, weight, statistics, slope)
    return [y, new_mean, new_var, *rest, of_added]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slope", [0.01, 0.0, 1.0])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_sum_before_the_activation_is_exact_to_a_millionth(own, shape, slope, parts):
    values = inputs(shape)
    added, *grads = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(1 + parts)
    )
    exact = exactly_of_sum(*values, added, slope, sum(grads[1:], grads[0]))
    for overwrite in (False, True):
        result = ours_of_sum(own, *values, added, slope, grads, overwrite)
        for value, wanted in zip(result, exact, strict=True):
            assert error(value, wanted) < 2e-6


def test_the_operators_of_a_sum_are_what_the_kernels_compute(own):
    shape = (2, 8, 9, 7)
    values = inputs(shape)
    added, *grads = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(3)
    )
    result = ours_of_sum(own, *values, added, 0.01, grads)
    y, statistics, *rest = norm_activation.of_sum(*values, added, MOMENTUM, EPS, 0.01)
    x, weight = values[:2]
    of_added, *more = norm_activation.of_sum_backward(*grads, y, x, weight, statistics, 0.01)
    for value, wanted in zip(result, [y, *rest, *more, of_added], strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_the_rule(own, decay, dtype):
    sizes = [(3,), (70_001,), (2, 3, 4)]

    def make(*size):
        return [torch.rand(shape) for shape in sizes]

    columns = [make() for _ in range(4)]
    columns[0] = [each.to(dtype) for each in columns[0]]
    if decay:  # else gradients are float32
        columns[1] = [each.to(dtype) for each in columns[1]]
    steps = [torch.tensor(float(k), dtype=torch.float64) for k in (0, 3, 100)]
    settings = torch.tensor([1e-3, 0.9, 0.999, 1e-8, decay, 4.0], dtype=torch.float64).unbind()
    expected = adam(*columns, steps, *settings)
    actual = updates.adam_update(own, False, *columns, steps, *settings)
    for value, wanted in zip(actual, expected, strict=True):
        tolerance = 1e-6 if value.dtype is not dtype else max(1e-6, torch.finfo(dtype).eps)
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=1e-7)
    assert [step.item() for step in steps] == [0, 3, 100]
    updates.adam_update(own, True, *columns, steps, *settings)
    assert torch.equal(columns[0][1], actual[1])


@pytest.mark.parametrize("nesterov", [0.0, 1.0])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd_is_the_rule(own, decay, nesterov):
    sizes = [(3,), (70_001,), (2, 3, 4)]
    columns = [[torch.randn(shape) for shape in sizes] for _ in range(3)]
    settings = torch.tensor([1e-2, 0.9, 0.8, decay, nesterov], dtype=torch.float64).unbind()
    before = [each.clone() for column in columns for each in column]
    expected = sgd(*columns, *settings)
    actual = updates.sgd_update(own, False, *columns, *settings)
    for value, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-6)  # terms up to 4
    given = [each for column in columns for each in column]
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))
    updates.sgd_update(own, True, *columns, *settings)
    assert torch.equal(columns[0][1], actual[1])
    assert torch.equal(columns[2][1], actual[4])


def test_a_library_that_is_none_is_refused():
    with pytest.raises(CorruptExecutable, match="kernels cannot be loaded"):
        binding.load(b"no library")


def test_threads_do_not_change_a_bit_of_a_sum(own, monkeypatch):
    shape = (2, 24, 200, 200)
    values = inputs(shape)
    added, *grads = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(3)
    )
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        results.append(ours_of_sum(own, *values, added, 0.01, grads, True))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
