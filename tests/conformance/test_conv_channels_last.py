"""Convolutions of channels-last images with few channels, against torch in double precision."""

from __future__ import annotations

import itertools
import math
import platform
import subprocess

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import binding, build, sources
from abele.kernels.binding import Conv
from abele.targets.cpu.op_by_op import convolutions
from helpers.kernel_library import COMPILER, NEEDS_COMPILER, error

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

# images, in, out, kernel, height, width; the kernels take 16 pixels of a row at once, or 8
CASES = [
    (1, 1, 8, 5, 9, 16),
    (2, 1, 16, 3, 5, 17),
    (1, 8, 8, 3, 33, 31),
    (2, 8, 16, 3, 4, 40),
    (3, 16, 24, 1, 7, 33),
    (1, 24, 8, 3, 1, 47),
    (2, 32, 32, 3, 3, 18),
    (1, 64, 16, 1, 2, 100),
    (2, 8, 3, 1, 6, 64),
    (1, 5, 7, 3, 6, 19),
    (2, 3, 20, 5, 3, 35),
    (1, 2, 2, 5, 2, 23),
    (2, 16, 16, 5, 20, 21),
    # eight outputs and two inputs share a register
    (1, 24, 24, 3, 18, 19),
    (2, 40, 8, 3, 3, 16),
    (1, 16, 40, 3, 5, 29),
    (1, 6, 8, 5, 5, 22),
]
CANARY, WORDS = 12345.0, 64


def described(case, slope=1.0):
    images, inputs, out, kernel, height, width = case
    half = kernel // 2
    sizes = images, inputs, height, width, out, kernel, kernel
    return Conv(*sizes, 1, 1, half, half, 1, slope)


def tensors(case):
    torch.manual_seed(7)
    images, inputs, out, kernel, height, width = case
    last = {"memory_format": torch.channels_last}
    x = torch.randn(images, inputs, height, width).contiguous(**last)
    grad = torch.randn(images, out, height, width).contiguous(**last)
    return x, torch.randn(out, inputs, kernel, kernel), torch.randn(out), grad


def guarded(shape):
    """Memory between canaries, and the channels-last image or the weight in it."""
    memory = torch.full((math.prod(shape) + 2 * WORDS,), CANARY)
    inner = memory[WORDS:-WORDS]
    inner.fill_(math.nan)  # shows what was not written
    return memory, inner


def taken_out(memory, shape, *, image):
    """The result, after a look at the canaries."""
    assert (memory[:WORDS] == CANARY).all()
    assert (memory[-WORDS:] == CANARY).all()
    inner = memory[WORDS:-WORDS]
    if not image:
        return inner.view(shape)
    images, channels, height, width = shape
    return inner.view(images, height, width, channels).permute(0, 3, 1, 2)


def convolved(own, case, x, weight, bias=None, *, slope=1.0, threads=1):
    images, _, out, _, height, width = case
    shape = (images, out, height, width)
    memory, inner = guarded(shape)
    start = None if bias is None else bias.data_ptr()
    pointers = x.data_ptr(), weight.data_ptr(), start, inner.data_ptr()
    own.abele_conv_forward(described(case, slope), *pointers, threads)
    return taken_out(memory, shape, image=True)


def gradient(own, case, which, x, weight, grad, *, threads=1):
    """That of x, weight or bias: 0, 1 or 2."""
    images, inputs, out, kernel, height, width = case
    shapes = (images, inputs, height, width), (out, inputs, kernel, kernel), (out,)
    memory, inner = guarded(shapes[which])
    results = [None, None, None]
    results[which] = inner.data_ptr()
    pointers = grad.data_ptr(), x.data_ptr(), weight.data_ptr(), *results
    own.abele_conv_backward(described(case), *pointers, threads)
    return taken_out(memory, shapes[which], image=which == 0)


def has_weight_gradient(case):
    _, inputs, out, kernel, *_ = case
    if out % 8 == 0:
        return inputs == 1 or inputs % 8 == 0
    return kernel == 1 and inputs % 8 == 0


def exactly(case, x, weight, bias, grad, slope):
    half = [case[3] // 2] * 2
    x, weight, grad = x.double(), weight.double(), grad.double()
    y = aten.conv2d(x, weight, None if bias is None else bias.double(), [1, 1], half)
    y = torch.where(y > 0, y, y * slope)
    rest = None, [1, 1], half, [1, 1], False, [0, 0], 1, [True, True, False]
    of_x, of_weight, _ = aten.convolution_backward(grad, x, weight, *rest)
    return y, of_x, of_weight, grad.sum((0, 2, 3))


def check(own, case):
    x, weight, bias, grad = tensors(case)
    for slope, start in itertools.product((1.0, 0.01, 0.0), (bias, None)):
        y, *gradients = exactly(case, x, weight, start, grad, slope)
        assert error(convolved(own, case, x, weight, start, slope=slope), y) < 5e-7
    for which, exact in enumerate(gradients):
        if which != 1 or has_weight_gradient(case):
            assert error(gradient(own, case, which, x, weight, grad), exact) < 5e-7


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_are_right_and_nothing_else_is_written(own, case):
    check(own, case)


@pytest.mark.parametrize("case", [*CASES[:4], CASES[8], *CASES[12:15]], ids=str)
def test_threads_do_not_change_a_bit(own, case):
    x, weight, bias, grad = tensors(case)

    def results(threads):
        settings = {"threads": threads}
        yield convolved(own, case, x, weight, bias, **settings)
        for which in range(3):
            yield gradient(own, case, which, x, weight, grad, **settings)

    alone = list(results(1))
    for threads in (2, 5):
        assert all(torch.equal(a, b) for a, b in zip(alone, results(threads), strict=True))


def test_weight_gradients_of_a_large_image_keep_their_digits(own):
    """One sum over all pixels in float32 would lose three; the mean of the image makes it worse."""
    case = (1, 8, 8, 3, 320, 512)
    x, weight, _, grad = tensors(case)
    x += 3
    _, _, *exact = exactly(case, x, weight, None, grad, 1.0)
    for which in (1, 2):
        gradients = gradient(own, case, which, x, weight, grad, threads=2)
        assert error(gradients, exact[which - 1]) < 2e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_reaches_its_neighbours_and_nobody_else(own, bad):
    case = (1, 8, 8, 3, 9, 33)
    x, weight, bias, grad = tensors(case)
    x[0, 3, 4, 32] = bad
    result = convolved(own, case, x, weight, bias).isfinite()
    assert torch.equal(result, aten.conv2d(x, weight, bias, [1, 1], [1, 1]).isfinite())
    assert result.logical_not().sum() == 8 * 3 * 2
    of_weight = gradient(own, case, 1, x, weight, grad)
    assert of_weight[:, 2].isfinite().all()
    assert not of_weight[:, 3].isfinite().any()


@pytest.mark.parametrize(
    "case", [(1, 8, 8, 7, 9, 32), (1, 8, 8, 2, 9, 32), (1, 8, 8, 3, 9, 5)], ids=str
)
def test_what_has_no_code_is_refused_and_not_computed(own, case):
    x, weight, bias, _ = tensors(case)
    y = torch.full_like(x, CANARY)
    pointers = x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr()
    with pytest.raises(CorruptExecutable, match="abele_conv_forward has no code for these sizes"):
        own.abele_conv_forward(described(case), *pointers, 1)
    assert (y == CANARY).all()


@pytest.mark.parametrize("field", ["stride_width", "pad_height", "kernel_height"])
def test_a_description_that_is_not_plain_has_no_code(own, field):
    case = CASES[3]
    x, weight, bias, _ = tensors(case)
    description = described(case)
    setattr(description, field, 2)
    y = torch.full_like(x, CANARY)
    pointers = x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr()
    with pytest.raises(CorruptExecutable, match="has no code"):
        own.abele_conv_forward(description, *pointers, 1)
    assert (y == CANARY).all()


def test_a_weight_gradient_without_code_is_refused(own):
    case = (1, 5, 7, 3, 6, 19)
    x, weight, _, grad = tensors(case)
    with pytest.raises(CorruptExecutable, match="abele_conv_backward has no code"):
        gradient(own, case, 1, x, weight, grad)


# -- which convolutions are given to the kernels ---------------------------------------------------


def node(case=(2, 8, 8, 3, 6, 40), *, stride=1, padding=None, dilation=1, groups=1, dtype=None):
    """A graph's convolution with these settings."""
    images, inputs, out, kernel, height, width = case
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    x.meta["val"] = torch.empty(images, inputs, height, width, dtype=dtype)
    weight.meta["val"] = torch.empty(out, inputs // groups, kernel, kernel, dtype=dtype)
    half = kernel // 2 if padding is None else padding
    settings = [stride] * 2, [half] * 2, [dilation] * 2, False, [0, 0], groups
    return graph.call_function(aten.convolution.default, (x, weight, None, *settings))


@pytest.mark.parametrize("case", [case for case in CASES if case[5] >= 16], ids=str)
def test_convolutions_that_gain_are_ours(own, capable, case):
    assert convolutions.own_convolution(node(case), own) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 2},
        {"dilation": 2},
        {"groups": 8},
        {"padding": 0},
        {"dtype": torch.float64},
        {"case": (1, 8, 8, 7, 20, 40)},
        {"case": (1, 8, 8, 3, 40, 15)},
        {"case": (1, 33, 32, 3, 40, 40)},
    ],
    ids=str,
)
def test_others_stay_the_librarys(own, capable, settings):
    assert convolutions.own_convolution(node(**settings), own) is None


def test_processors_without_wide_registers_keep_the_library(own, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert convolutions.own_convolution(node(), own) is None


@pytest.mark.parametrize("case", [(2, 8, 8, 3, 6, 40), (1, 5, 7, 3, 6, 19), (2, 1, 8, 5, 6, 20)])
@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3))[1:], ids=str)
def test_backward_gives_what_was_asked_for(own, capable, case, mask):
    """Whatever part the kernels do not have comes from the library."""
    x, weight, _, grad = tensors(case)
    half = [case[3] // 2] * 2
    settings = [case[2]], [1, 1], half, [1, 1], False, [0, 0], 1, list(mask)
    forward = node(case)
    inputs = forward.graph.placeholder("grad"), *forward.args[:2]
    backward = forward.graph.call_function(aten.convolution_backward.default, (*inputs, *settings))
    result = convolutions.own_convolution(backward, own)(grad, x, weight, *settings)
    doubles = (each.double() for each in (grad, x, weight))
    for value, exact in zip(result, aten.convolution_backward(*doubles, *settings), strict=True):
        assert (value is None) == (exact is None)
        assert value is None or error(value, exact) < 2e-6


def test_a_bias_may_be_a_column(own, capable):
    case = (2, 8, 8, 3, 6, 40)
    x, weight, bias, _ = tensors(case)
    column = torch.stack([torch.full_like(bias, CANARY), bias], 1)[:, 1]
    run = convolutions.own_convolution(node(case), own)
    assert torch.equal(run(x, weight, column), run(x, weight, bias))


# -- other processors and compilers ----------------------------------------------------------------


def library_for(folder, *flags):
    """The kernels compiled otherwise, with every warning an error."""
    usual = [flag for flag in sources.FLAGS if flag != "-march=native"]
    # GCC says of vectors in template arguments what -Wno-psabi says already.
    warnings = "-Wall", "-Wextra", "-Werror", "-Wno-ignored-attributes"
    flags = *usual, *warnings, *flags
    objects = build.compiled(COMPILER, str(folder), sources.KERNELS, flags)
    path = folder / "kernels.so"
    subprocess.run([COMPILER, "-shared", "-fopenmp", "-o", str(path), *objects], check=True)
    return binding.bound(path)


x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flags of x86")


@x86
@pytest.mark.thorough
@pytest.mark.parametrize("flag", ["-march=native", "-march=haswell", "-march=x86-64"])
def test_processors_with_narrower_registers_compute_the_same(tmp_path, flag):
    narrow = library_for(tmp_path, flag)
    for case in CASES:
        check(narrow, case)
    if flag != "-march=native":
        check(narrow, (2, 8, 8, 3, 4, 9))  # rows of less than sixteen pixels
