"""Convolutions of channels-last images by Winograd's way, against torch in double precision."""

from __future__ import annotations

import itertools
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import binding, build, sources
from abele.kernels.binding import Conv
from helpers import winograd_memory
from helpers.kernel_library import COMPILER, NEEDS_COMPILER, error
from helpers.warm_python import python

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

# images, in, out, height, width, padding: whole tiles and cut ones, blocks that are not full, and
# channels that fill registers and panels of two or do not
CASES = [
    (2, 16, 32, 8, 8, 1),
    (1, 64, 64, 5, 7, 1),
    (3, 48, 16, 4, 6, 0),
    (1, 5, 7, 3, 3, 0),
    (2, 33, 40, 9, 6, 1),
    (1, 1, 1, 1, 1, 1),
    (2, 20, 17, 2, 3, 2),
    (1, 16, 16, 1, 1, 2),
    (1, 150, 24, 6, 5, 1),
    (5, 8, 130, 11, 13, 1),
    (4, 16, 16, 17, 32, 1),
    (3, 20, 40, 31, 45, 1),  # parts of several chunks
    # registers of eight; rows of tiles inside of their image, at its border and beyond
    (4, 8, 8, 17, 34, 1),
    (2, 24, 24, 20, 33, 1),
    (1, 24, 8, 6, 50, 0),
    (3, 40, 24, 5, 7, 1),
    (2, 8, 16, 12, 18, 2),
    (1, 24, 24, 2, 2, 1),
]
CANARY, WORDS = 12345.0, 64
LAST = {"memory_format": torch.channels_last}


def described(case, slope=1.0):
    images, inputs, out, height, width, padding = case
    return Conv(images, inputs, height, width, out, 3, 3, 1, 1, padding, padding, 1, slope)


def shapes(case):
    """Of the images, the weight, the bias and the result."""
    images, inputs, out, height, width, padding = case
    grown = 2 * padding - 2
    result = images, out, height + grown, width + grown
    return (images, inputs, height, width), (out, inputs, 3, 3), (out,), result


def tensors(case):
    torch.manual_seed(7)
    x, weight, bias, grad = (torch.randn(shape) for shape in shapes(case))
    return x.contiguous(**LAST), weight, bias, grad.contiguous(**LAST)


def whole(memory):
    return bool((memory[:WORDS] == CANARY).all() and (memory[-WORDS:] == CANARY).all())


def convolved(own, case, x, weight, bias=None, *, slope=1.0, threads=1):
    memory = torch.full((math.prod(shapes(case)[3]) + 2 * WORDS,), CANARY)
    y = in_memory(memory, shapes(case)[3], image=True)
    start = None if bias is None else bias.data_ptr()
    pointers = x.data_ptr(), weight.data_ptr(), start, y.data_ptr()
    own.abele_winograd_forward(described(case, slope), *pointers, threads)
    assert whole(memory)
    return y


def in_memory(memory, shape, *, image):
    """The tensor between the canaries, NaN until it is written."""
    inner = memory[WORDS:-WORDS].fill_(math.nan)
    if not image:
        return inner.view(shape)
    images, channels, height, width = shape
    return inner.view(images, height, width, channels).permute(0, 3, 1, 2)


def gradients(own, case, x, weight, grad, *, wanted=(True, True, True), threads=1):
    """Those of x, weight and bias."""
    memories = [torch.full((math.prod(s) + 2 * WORDS,), CANARY) for s in shapes(case)[:3]]
    places = [
        in_memory(memory, shape, image=which == 0) if wanted[which] else None
        for which, (memory, shape) in enumerate(zip(memories, shapes(case), strict=False))
    ]
    made = [None if place is None else place.data_ptr() for place in places]
    pointers = grad.data_ptr(), x.data_ptr(), weight.data_ptr(), *made
    own.abele_winograd_backward(described(case), *pointers, threads)
    assert all(map(whole, memories))
    return places


def exactly(case, x, weight, bias, grad, slope=1.0, dtype=torch.float64):
    """Result and gradients by torch, in the default order of memory."""
    padding = [case[5]] * 2
    x, weight, grad = (each.to(dtype).contiguous() for each in (x, weight, grad))
    y = aten.conv2d(x, weight, None if bias is None else bias.to(dtype), [1, 1], padding)
    rest = [case[2]], [1, 1], padding, [1, 1], False, [0, 0], 1, [True, True, True]
    return torch.where(y > 0, y, y * slope), *aten.convolution_backward(grad, x, weight, *rest)


def check(own, case):
    x, weight, bias, grad = tensors(case)
    for slope, start in itertools.product((1.0, 0.01, 0.0), (bias, None)):
        y, *exact = exactly(case, x, weight, start, grad, slope)
        assert error(convolved(own, case, x, weight, start, slope=slope), y) < 5e-7
    for result, value in zip(gradients(own, case, x, weight, grad), exact, strict=True):
        assert error(result, value) < 5e-7


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_are_right_and_nothing_else_is_written(own, case):
    check(own, case)


@pytest.mark.parametrize("case", [*CASES[:3], CASES[4], *CASES[11:14]], ids=str)
def test_threads_do_not_change_a_bit(own, case):
    x, weight, bias, grad = tensors(case)

    def by(threads):
        y = convolved(own, case, x, weight, bias, threads=threads)
        return [y, *gradients(own, case, x, weight, grad, threads=threads)]

    alone = by(1)
    for threads in (2, 3, 7):
        assert all(torch.equal(a, b) for a, b in zip(alone, by(threads), strict=True))


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)), ids=str)
def test_only_the_gradients_that_are_wanted_are_written(own, wanted):
    case = CASES[0]
    x, weight, _, grad = tensors(case)
    all_of_them = gradients(own, case, x, weight, grad)
    for result, value in zip(
        gradients(own, case, x, weight, grad, wanted=wanted), all_of_them, strict=True
    ):
        assert result is None or torch.equal(result, value)


@pytest.mark.parametrize(
    "case", [(2, 64, 64, 32, 32, 1), (2, 512, 64, 4, 4, 1), (1, 256, 64, 16, 16, 1)], ids=str
)
def test_errors_are_those_of_eager_torch_or_smaller(own, case):
    """Short sums of torch's have less than the transforms alone, which round about twice."""
    x, weight, _, grad = tensors(case)
    x = x.relu()
    exact = exactly(case, x, weight, None, grad)
    eager = exactly(case, x, weight, None, grad, dtype=torch.float32)
    ours = convolved(own, case, x, weight), *gradients(own, case, x, weight, grad)
    for a, b, value in zip(ours, eager, exact, strict=True):
        assert error(a, value) < max(2e-7, error(b, value))


def test_weight_gradients_of_large_images_keep_their_digits(own):
    """One sum over all pixels in float32 would lose three; the mean of the image makes it worse."""
    case = (2, 16, 16, 320, 256, 1)
    x, weight, _, grad = tensors(case)
    x += 3
    _, _, *exact = exactly(case, x, weight, None, grad)
    _, *result = gradients(own, case, x, weight, grad, threads=2)
    for value, right in zip(result, exact, strict=True):
        assert error(value, right) < 2e-6


def test_no_images_have_no_weight_gradient(own):
    case = (0, 16, 16, 8, 8, 1)
    x, weight, _, grad = tensors(case)
    convolved(own, case, x, weight)
    of_x, *others = gradients(own, case, x, weight, grad)
    assert of_x.numel() == 0
    assert all(torch.equal(each, torch.zeros_like(each)) for each in others)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks need Linux")
@pytest.mark.parametrize("threads", [1, 2])
def test_both_gradients_take_the_memory_of_one(threads):
    program = str(Path(winograd_memory.__file__))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [python(), "-W", "ignore", program, "512", "4", str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken, planned = map(int, done.stdout.split())
    weights = 16 * 512 * 512 * 4  # transformed, or the sums of their gradients
    assert weights < planned < 1.6 * weights
    assert 0.9 * planned < taken < 1.2 * planned


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_reaches_what_it_reaches_in_torch(own, bad):
    case = (2, 16, 16, 8, 8, 1)
    x, weight, bias, grad = tensors(case)
    x[0, 3, 4, 4] = bad
    result = convolved(own, case, x, weight, bias).isfinite()
    assert torch.equal(result, aten.conv2d(x, weight, bias, [1, 1], [1, 1]).isfinite())
    assert result.logical_not().sum() == 16 * 3 * 3
    _, of_weight, _ = gradients(own, case, x, weight, grad)
    assert not of_weight[:, 3].isfinite().any()
    assert of_weight[:, 4].isfinite().all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("stride_width", 2), ("pad_height", 0), ("kernel_height", 5), ("channels_last", 0)],
)
def test_what_has_no_code_is_refused_and_not_computed(own, field, value):
    case = CASES[0]
    x, weight, _, _ = tensors(case)
    description = described(case)
    setattr(description, field, value)
    y = torch.full(shapes(case)[3], CANARY)
    pointers = x.data_ptr(), weight.data_ptr(), None, y.data_ptr()
    with pytest.raises(CorruptExecutable, match="abele_winograd_forward has no code"):
        own.abele_winograd_forward(description, *pointers, 1)
    assert (y == CANARY).all()
    with pytest.raises(CorruptExecutable, match="abele_winograd_backward has no code"):
        own.abele_winograd_backward(description, *pointers[:2], None, None, *pointers[3:], None, 1)


x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flags of x86")


@x86
@pytest.mark.thorough
@pytest.mark.parametrize("flag", ["-march=haswell", "-march=x86-64"])
def test_processors_with_narrower_registers_compute_the_same(tmp_path, flag):
    usual = [each for each in sources.FLAGS if each != "-march=native"]
    flags = *usual, "-Wall", "-Wextra", "-Werror", flag
    objects = build.compiled(COMPILER, str(tmp_path), sources.KERNELS, flags)
    path = tmp_path / "kernels.so"
    subprocess.run([COMPILER, "-shared", "-fopenmp", "-o", str(path), *objects], check=True)
    for case in CASES:
        check(binding.bound(path), case)
