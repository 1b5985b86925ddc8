"""Convolutions of channels-last images, direct and by Winograd's way, against torch in double."""

import itertools
import math
import platform
import subprocess

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import binding, on_tensors, self_test, sources
from abele.kernels.binding import Conv
from helpers.kernel_library import COMPILER, NEEDS_COMPILER, compiled, error, replacement

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

# images, in, out, kernel, height, width; the kernels take 16 pixels of a row at once, or 8
DIRECT = [
    (1, 1, 8, 5, 9, 16),
    (2, 1, 16, 3, 5, 17),
    (2, 8, 16, 3, 4, 40),
    (3, 16, 24, 1, 7, 33),
    (2, 8, 3, 1, 6, 64),
    (1, 5, 7, 3, 6, 19),
    (2, 16, 16, 5, 20, 21),
]
WINOGRAD = (2, 16, 32, 8, 8, 1)  # images, in, out, height, width, padding
CANARY, WORDS = 12345.0, 64
LAST = {"memory_format": torch.channels_last}


class Case:
    """A convolution, with its operands, by one of our kernels and by torch."""

    def __init__(self, kind, sizes):
        self.kind, self.sizes = kind, sizes
        if kind == "direct":
            images, inputs, out, kernel, height, width = sizes
            padding = kernel // 2
        else:
            images, inputs, out, height, width, padding = sizes
            kernel = 3
        self.kernel, self.padding = kernel, padding
        grown = 2 * padding + 1 - kernel
        y = images, out, height + grown, width + grown
        self.shapes = (images, inputs, height, width), (out, inputs, kernel, kernel), (out,), y
        torch.manual_seed(7)
        x, self.weight, self.bias, grad = (torch.randn(shape) for shape in self.shapes)
        self.x, self.grad = x.contiguous(**LAST), grad.contiguous(**LAST)

    def __str__(self):
        return f"{self.kind}-{self.sizes}"

    def described(self, slope=1.0):
        (images, inputs, height, width), (out, *_), *_ = self.shapes
        sizes = images, inputs, height, width, out, self.kernel, self.kernel
        return Conv(*sizes, 1, 1, self.padding, self.padding, 1, slope)

    def functions(self, own):
        name = {"direct": "conv", "winograd": "winograd"}[self.kind]
        return getattr(own, f"abele_{name}_forward"), getattr(own, f"abele_{name}_backward")

    def forward(self, own, *, bias=True, slope=1.0, threads=1):
        memory, y = guarded(self.shapes[3], image=True)
        start = self.bias.data_ptr() if bias else None
        pointers = self.x.data_ptr(), self.weight.data_ptr(), start, y.data_ptr()
        self.functions(own)[0](self.described(slope), *pointers, threads)
        assert whole(memory)
        return y

    def wanted(self):
        """The gradients that there is code for: of x, weight and bias."""
        (_, inputs, *_), (out, *_), *_ = self.shapes
        if self.kind == "winograd":
            return True, True, True
        if out % 8 == 0:
            return True, inputs == 1 or inputs % 8 == 0, True
        return True, self.kernel == 1 and inputs % 8 == 0, True

    def backward(self, own, *, wanted=None, threads=1):
        """The wanted gradients of x, weight and bias; each by itself from the direct kernel."""
        wanted = self.wanted() if wanted is None else wanted
        results = [None, None, None]
        apart = [[which] for which in range(3)] if self.kind == "direct" else [range(3)]
        for group in apart:
            given, pointers = {}, [None, None, None]
            for which in (each for each in group if wanted[each]):
                given[which], results[which] = guarded(self.shapes[which], image=which == 0)
                pointers[which] = results[which].data_ptr()
            if given:
                operands = self.grad.data_ptr(), self.x.data_ptr(), self.weight.data_ptr()
                self.functions(own)[1](self.described(), *operands, *pointers, threads)
            assert all(map(whole, given.values()))
        return results

    def exactly(self, *, bias=True, slope=1.0, dtype=torch.float64):
        """Result and gradients by torch, in the default order of memory."""
        padding = [self.padding] * 2
        x, weight, grad = (e.to(dtype).contiguous() for e in (self.x, self.weight, self.grad))
        y = aten.conv2d(x, weight, self.bias.to(dtype) if bias else None, [1, 1], padding)
        rest = [len(self.bias)], [1, 1], padding, [1, 1], False, [0, 0], 1, [True] * 3
        return torch.where(y > 0, y, y * slope), *aten.convolution_backward(grad, x, weight, *rest)


def guarded(shape, *, image):
    """Memory between canaries, and the tensor in it, which is NaN until it is written."""
    memory = torch.full((math.prod(shape) + 2 * WORDS,), CANARY)
    inner = memory[WORDS:-WORDS].fill_(math.nan)
    if not image:
        return memory, inner.view(shape)
    images, channels, height, width = shape
    return memory, inner.view(images, height, width, channels).permute(0, 3, 1, 2)


def whole(memory):
    return bool((memory[:WORDS] == CANARY).all() and (memory[-WORDS:] == CANARY).all())


def cases(direct, winograd):
    chosen = [("direct", sizes) for sizes in direct] + [("winograd", sizes) for sizes in winograd]
    return pytest.mark.parametrize(("kind", "sizes"), chosen, ids=str)


@cases([(1, 8, 8, 3, 320, 512)], [(2, 16, 16, 320, 256, 1)])
def test_weight_gradients_of_a_large_image_keep_their_digits(own, kind, sizes):
    """One sum over all pixels in float32 would lose three; the mean of the image makes it worse."""
    case = Case(kind, sizes)
    case.x += 3
    _, _, *exact = case.exactly(bias=False)
    for value, right in zip(case.backward(own, threads=2)[1:], exact, strict=True):
        assert error(value, right) < 2e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@cases([(1, 8, 8, 3, 9, 33)], [(2, 16, 16, 8, 8, 1)])
def test_what_is_not_finite_reaches_its_neighbours_and_nobody_else(own, kind, sizes, bad):
    case = Case(kind, sizes)
    column, reached = (32, 2) if kind == "direct" else (4, 3)  # at the border, and inside
    case.x[0, 3, 4, column] = bad
    result = case.forward(own).isfinite()
    exact = aten.conv2d(case.x, case.weight, case.bias, [1, 1], [1, 1])
    assert torch.equal(result, exact.isfinite())
    assert result.logical_not().sum() == len(case.bias) * 3 * reached
    of_weight = case.backward(own)[1].isfinite()
    assert of_weight[:, 4].all()
    assert not of_weight[:, 3].any()


@pytest.mark.parametrize(
    ("kind", "sizes", "field", "value"),
    [
        *(("direct", sizes, None, 0) for sizes in [(1, 8, 8, 7, 9, 32), (1, 8, 8, 3, 9, 5)]),
        *(
            ("direct", DIRECT[2], field, 2)
            for field in ("stride_width", "pad_height", "kernel_height")
        ),
        ("winograd", WINOGRAD, "stride_width", 2),
        ("winograd", WINOGRAD, "pad_height", 0),
        ("winograd", WINOGRAD, "kernel_height", 5),
        ("winograd", WINOGRAD, "channels_last", 0),
    ],
    ids=str,
)
def test_what_has_no_code_is_refused_and_not_computed(own, kind, sizes, field, value):
    case = Case(kind, sizes)
    description = case.described()
    if field is not None:
        setattr(description, field, value)
    y = torch.full(case.shapes[3], CANARY)
    x, weight, end = case.x.data_ptr(), case.weight.data_ptr(), y.data_ptr()
    with pytest.raises(CorruptExecutable, match="_forward has no code for these sizes"):
        case.functions(own)[0](description, x, weight, None, end, 1)
    if kind == "winograd":
        with pytest.raises(CorruptExecutable, match="_backward has no code for these sizes"):
            case.functions(own)[1](description, x, weight, None, None, end, None, 1)
    assert (y == CANARY).all()


def test_a_weight_gradient_without_code_is_refused(own):
    with pytest.raises(CorruptExecutable, match="abele_conv_backward has no code"):
        Case("direct", (1, 5, 7, 3, 6, 19)).backward(own, wanted=(False, True, False))


# -- by Winograd's way -----------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)), ids=str)
def test_only_the_gradients_that_are_wanted_are_written(own, wanted):
    case = Case("winograd", WINOGRAD)
    results = zip(case.backward(own, wanted=wanted), case.backward(own), strict=True)
    assert all(one is None or torch.equal(one, of_all) for one, of_all in results)


def test_no_images_have_no_weight_gradient(own):
    case = Case("winograd", (0, 16, 16, 8, 8, 1))
    case.forward(own)
    of_x, *others = case.backward(own)
    assert of_x.numel() == 0
    assert all(torch.equal(each, torch.zeros_like(each)) for each in others)


# Tiles in one block and in several, weights packed at once and by panels.
@pytest.mark.parametrize(
    "sizes", [(2, 48, 32, 5, 7, 1), (9, 64, 80, 22, 23, 0), (1, 32, 300, 8, 9, 2)]
)
def test_bfloat16_images_have_no_larger_errors_than_the_library(own, sizes):
    images, inputs, out, height, width, padding = sizes
    shapes = (images, inputs, height, width), (out, inputs, 3, 3), [1, 1], [padding, padding]
    torch.manual_seed(3)
    x, weight = (torch.randn(shape).bfloat16() for shape in shapes[:2])
    rest = [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1
    plain = aten.convolution(x, weight, None, *rest)
    grad, mask = torch.randn_like(plain), [True, True, False]
    results = []
    for threads in (1, 2, 3):
        how = {"threads": threads, "layout": torch.channels_last, "dtype": torch.bfloat16}
        given = [each.contiguous(**LAST) for each in (grad, x)]
        y = on_tensors.conv(own, *shapes, function="winograd", **how)(given[1], weight, None)
        back = on_tensors.conv_backward(own, *shapes, mask, function="winograd", **how)
        results.append([y, *back(*given, weight)[:2]])
    library = [plain, *aten.convolution_backward(grad, x, weight, None, *rest, mask)[:2]]
    wide = [each.double() for each in (grad, x, weight)]
    exact = aten.convolution_backward(*wide, None, *rest, mask)[:2]
    exact = [aten.convolution(*wide[1:], None, *rest), *exact]
    for one, others in zip(results[0], zip(*results, strict=True), strict=True):
        assert all(torch.equal(one, other) for other in others)
    for value, theirs, right in zip(results[0], library, exact, strict=True):
        assert (value - right).norm() <= 1.01 * (theirs - right).norm()


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


@pytest.mark.parametrize("case", [case for case in DIRECT if case[5] >= 16], ids=str)
def test_convolutions_that_gain_are_ours(own, capable, case):
    assert replacement(node(case), own) is not None


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
    assert replacement(node(**settings), own) is None


def test_processors_without_wide_registers_keep_the_library(own, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert replacement(node(), own) is None


@pytest.mark.parametrize("case", [(2, 8, 8, 3, 6, 40), (1, 5, 7, 3, 6, 19), (2, 1, 8, 5, 6, 20)])
@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3))[1:], ids=str)
def test_backward_gives_what_was_asked_for(own, capable, case, mask):
    """Whatever part the kernels do not have comes from the library."""
    made = Case("direct", case)
    x, weight, grad = made.x, made.weight, made.grad
    half = [case[3] // 2] * 2
    settings = [case[2]], [1, 1], half, [1, 1], False, [0, 0], 1, list(mask)
    forward = node(case)
    inputs = forward.graph.placeholder("grad"), *forward.args[:2]
    backward = forward.graph.call_function(aten.convolution_backward.default, (*inputs, *settings))
    result = replacement(backward, own)(grad, x, weight, *settings)
    doubles = (each.double() for each in (grad, x, weight))
    for value, exact in zip(result, aten.convolution_backward(*doubles, *settings), strict=True):
        assert (value is None) == (exact is None)
        assert value is None or error(value, exact) < 2e-6


def test_a_bias_may_be_a_column(own, capable):
    case = (2, 8, 8, 3, 6, 40)
    made = Case("direct", case)
    x, weight, bias = made.x, made.weight, made.bias
    column = torch.stack([torch.full_like(bias, CANARY), bias], 1)[:, 1]
    run = replacement(node(case), own)
    assert torch.equal(run(x, weight, column), run(x, weight, bias))


# -- other processors and compilers ----------------------------------------------------------------


def library_for(folder, *flags):
    """The kernels compiled otherwise, with every warning an error."""
    usual = [flag for flag in sources.FLAGS if flag != "-march=native"]
    # GCC says of vectors in template arguments what -Wno-psabi says already.
    warnings = "-Wall", "-Wextra", "-Werror", "-Wno-ignored-attributes"
    flags = *usual, *warnings, *flags
    objects = compiled(folder, sources.KERNELS, flags)
    path = folder / "kernels.so"
    subprocess.run([COMPILER, "-shared", "-fopenmp", "-o", str(path), *objects], check=True)
    return binding.bound(path)


x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flags of x86")


@x86
@pytest.mark.thorough
@pytest.mark.parametrize("flag", ["-march=native", "-march=haswell", "-march=x86-64"])
def test_processors_with_narrower_registers_compute_the_same(tmp_path, flag):
    assert self_test.problem(library_for(tmp_path, flag)) is None
