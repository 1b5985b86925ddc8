"""Breadth: operators and modules of torch in wrapped models, each against plain PyTorch, bitwise.

One line per operator: what is called, and a maker per input. In training an operator sees its first
input scaled and shifted by two weights, and modules train their own: one step of several lines, and
results and weights must be plain PyTorch's. What has no gradient, and what torch computes otherwise
where none is wanted, runs for inference.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import options

_NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}


def real(*shape: int) -> Callable:
    """Numbers around zero."""
    return lambda: torch.randn(shape)


def unit(*shape: int) -> Callable:
    """Numbers between 0.1 and 0.9."""
    return lambda: torch.rand(shape) * 0.8 + 0.1


def below(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Callable:
    """Whole numbers from 0."""
    return lambda: torch.randint(0, high, shape).to(dtype)


def coins(*shape: int) -> Callable:
    """True and False."""
    return lambda: torch.rand(shape) > 0.5


class Attends(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x):
        return self.attention(x, x, x)


R, P, IMAGE, SERIES = real(3, 4), unit(3, 4), real(2, 4, 8, 8), real(5, 2, 4)
VOLUME, SQUARE, PICK = real(2, 4, 5, 5, 5), real(4, 4), below(4, 4)
INTS, WORDS = below(9, 3, 4), below(6, 2, 3)


def _set(key: Any, value: Any) -> Callable:
    def write(x, *indices):
        x = x.clone()
        x[indices or key] = value
        return x

    return write


def _named(names: str, *makers: Callable, source: Any = torch) -> list[tuple]:
    return [(name, getattr(source, name), *makers) for name in names.split()]


def _by_rows(names: str) -> list[tuple]:
    return [
        (f"{name} of rows", functools.partial(function, dim=1), maker)
        for name, function, maker in _named(names, R)
    ]


POINTWISE = [
    *_named("abs asinh atan ceil cos cosh erf erfc exp exp2 expm1 floor frac neg round", R),
    *_named("sigmoid sign sin sinh sinc square tan tanh trunc nan_to_num relu deg2rad i0", R),
    *_named("acos asin atanh erfinv lgamma digamma log log10 log1p log2 logit", P),
    *_named("acosh", lambda: torch.rand(3, 4) + 2),
    *_named("reciprocal rsqrt sqrt", P),
    *_named("add sub mul div pow fmod remainder maximum minimum fmax fmin atan2 hypot", P, P),
    *_named("logaddexp xlogy copysign dist float_power", P, P),
    ("broadcast", torch.add, P, unit(3, 1)),
    ("scalars", lambda x: (2 - x) / 3 + 2**x, P),
    ("clamp", lambda x: x.clamp(-0.5, 0.5), R),
    ("clamp by tensors", torch.clamp, R, unit(1, 4), unit(3, 1)),
    ("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), R, R, R),
    ("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), R, R, P),
    ("lerp", torch.lerp, R, R, P),
    ("where", lambda x, y: torch.where(y > 0.5, x, y), R, P),
    ("masked_fill", lambda x, m: x.masked_fill(m, -1.0), R, coins(3, 4)),
    ("in place", lambda x: x.clone().mul_(2).add_(1).clamp_(min=0).sqrt_(), P),
]
REDUCTIONS = [
    *_named("sum mean std var norm max min nansum median", R),
    *_by_rows("sum mean std var amax amin logsumexp cumsum cumprod norm"),
    ("several dimensions", lambda x: x.mean((0, 2), keepdim=True), real(3, 4, 2)),
    ("max with indices", lambda x: tuple(x.max(1)), R),
    ("var_mean", lambda x: torch.var_mean(x, 1, correction=0), R),
    ("sort", lambda x: tuple(x.sort(1, descending=True)), R),
    ("topk", lambda x: tuple(x.topk(2)), R),
    ("kthvalue", lambda x: tuple(x.kthvalue(2, 1)), R),
]
SHAPES = [
    ("view", lambda x: x.view(-1, 6), R),
    ("flatten", lambda x: x.flatten(1), IMAGE),
    ("permute", lambda x: x.permute(2, 0, 3, 1), IMAGE),
    ("transposed, made contiguous", lambda x: x.mT.contiguous(), R),
    ("squeeze", lambda x: x[:, :1].squeeze(1).unsqueeze(0), R),
    ("expand", lambda x: x[:, :1].expand(-1, 4), R),
    ("repeat", lambda x: x.repeat(2, 1).repeat_interleave(2, 1), R),
    ("cat, stack", lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y])), R, R),
    ("split, chunk", lambda x: (*x.split([1, 3], 1), *x.chunk(2, 1), *x.unbind()), R),
    ("slices", lambda x: (x[1], x[:, ::2], x[..., -2:], x[:, None]), R),
    ("flip, roll", lambda x: (x.flip(0), x.roll(1, 1), x.rot90()), R),
    ("triangles", lambda x: (x.tril(), x.triu(1), x.diagonal(), x.diag_embed()), SQUARE),
    ("unfold", lambda x: x.unfold(1, 2, 1), R),
    ("meshgrid", lambda x: torch.meshgrid(x[0], x[1], indexing="ij"), R),
    ("nothing of it", lambda x: (x, x[:, :0]), R),
    ("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=2.0), IMAGE),
    ("reflected pad", nn.ReflectionPad2d(1), IMAGE),
    ("circular pad", nn.CircularPad2d(1), IMAGE),
    ("pixel shuffle", nn.PixelShuffle(2), IMAGE),
    ("unfold and fold", lambda x: F.fold(F.unfold(x, 3), (8, 8), 3), IMAGE),
]
INDEXING = [
    ("indexed", lambda x, i: (x[i], x[:, i], x[i, i]), SQUARE, PICK),
    ("index_select", lambda x, i: x.index_select(1, i), SQUARE, PICK),
    ("gather", lambda x, i: x.gather(1, i), R, below(4, 3, 4)),
    ("gather by int32", lambda x, i: x.gather(1, i), R, below(4, 3, 4, dtype=torch.int32)),
    ("scatter_add", lambda x, i: x.scatter_add(1, i, x), R, below(4, 3, 4)),
    ("scatter_reduce", lambda x, i: x.scatter_reduce(1, i, x, "mean"), R, below(4, 3, 4)),
    ("index_add", lambda x, i: x.index_add(0, i, x), SQUARE, PICK),
    ("index_put", lambda x, i: x.index_put((i,), x, accumulate=True), SQUARE, PICK),
    ("assigned row", _set(1, 2.0), R),
    ("assigned slice", _set((slice(None), slice(1, 3)), 0.0), R),
    ("assigned mask", _set(None, 1.0), R, coins(3, 4)),
    ("assigned indices", _set(None, 1.0), SQUARE, PICK),
    ("one_hot", lambda x, i: x + F.one_hot(i, 4), SQUARE, PICK),
    ("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), R, below(4, 3, 2)),
]
PRODUCTS = [
    ("matmul", torch.matmul, SQUARE, SQUARE),
    ("bmm", torch.bmm, real(2, 3, 4), real(2, 4, 3)),
    ("addmm", lambda x, y: torch.addmm(x, x, y, beta=0.5, alpha=2), SQUARE, SQUARE),
    ("vectors", lambda x, y: (x[0].dot(y[0]), x[0].outer(y[0]), x.mv(y[0])), SQUARE, SQUARE),
    ("einsum", lambda x, y: torch.einsum("ij,jk,kl->il", x, y, x), SQUARE, SQUARE),
    ("tensordot", lambda x, y: torch.tensordot(x, y, dims=1), SQUARE, SQUARE),
    ("cdist", torch.cdist, SQUARE, SQUARE),
    ("cosine", F.cosine_similarity, R, R),
    ("inverse", lambda x: torch.linalg.inv(x + 5 * torch.eye(4)), SQUARE),
    ("attention", lambda x: F.scaled_dot_product_attention(x, x, x), real(1, 2, 3, 4)),
    ("fourier", lambda x: torch.fft.rfft(x).abs(), R),
]
ACTIVATIONS = (
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU "
    "ReLU6 SELU SiLU Softplus Softshrink Softsign Tanhshrink"
)
MODULES = [
    *[(name, kind(), maker) for name, kind, maker in _named(ACTIVATIONS, R, source=nn)],
    ("Softmax", nn.Softmax(1), R),
    ("LogSoftmax", nn.LogSoftmax(1), R),
    ("Linear", nn.Linear(4, 3), R),
    ("Bilinear", nn.Bilinear(4, 4, 3), R, R),
    ("Conv1d", nn.Conv1d(4, 6, 3, stride=2), real(2, 4, 9)),
    ("Conv2d", nn.Conv2d(4, 6, 3, padding=1), IMAGE),
    ("Conv2d in groups", nn.Conv2d(4, 8, 3, groups=4, dilation=2, bias=False), IMAGE),
    ("Conv3d", nn.Conv3d(4, 2, 2), VOLUME),
    ("ConvTranspose2d", nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1), IMAGE),
    ("MaxPool2d", nn.MaxPool2d(3, 2, 1), IMAGE),
    ("MaxPool2d with indices", nn.MaxPool2d(2, return_indices=True), IMAGE),
    ("AvgPool2d", nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    ("AvgPool3d", nn.AvgPool3d(2), VOLUME),
    ("AdaptiveAvgPool2d", nn.AdaptiveAvgPool2d(3), IMAGE),
    ("AdaptiveMaxPool2d", nn.AdaptiveMaxPool2d(1), IMAGE),
    ("BatchNorm2d", nn.BatchNorm2d(4), IMAGE),
    ("BatchNorm1d, evaluating", nn.BatchNorm1d(4).eval(), R),
    ("LayerNorm", nn.LayerNorm([2, 4]), SERIES),
    ("GroupNorm", nn.GroupNorm(2, 4, affine=False), IMAGE),
    ("InstanceNorm2d", nn.InstanceNorm2d(4, affine=True), IMAGE),
    ("RMSNorm", nn.RMSNorm(4), R),
    ("LocalResponseNorm", nn.LocalResponseNorm(2), IMAGE),
    ("Upsample", nn.Upsample(scale_factor=2), IMAGE),
    ("Upsample, bilinear", nn.Upsample(scale_factor=1.5, mode="bilinear"), IMAGE),
    ("Dropout, evaluating", nn.Dropout().eval(), R),
    ("Embedding", nn.Embedding(6, 4, padding_idx=1), WORDS),
    ("Embedding of int32", nn.Embedding(6, 4), below(6, 2, 3, dtype=torch.int32)),
    ("EmbeddingBag", nn.EmbeddingBag(6, 4, mode="sum"), WORDS),
    ("RNN", nn.RNN(4, 3, bias=False), SERIES),
    ("GRU", nn.GRU(4, 3, num_layers=2, bidirectional=True), SERIES),
    ("LSTMCell", nn.LSTMCell(4, 3), R),
    ("MultiheadAttention", Attends(), SERIES),
    ("TransformerEncoderLayer", nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), SERIES),
    ("weight_norm", nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), R),
]
LOSSES = [
    ("cross_entropy", F.cross_entropy, R, below(4, 3)),
    ("cross_entropy, ignoring", lambda x, y: F.cross_entropy(x, y, ignore_index=0), R, below(4, 3)),
    ("nll_loss of images", F.nll_loss, IMAGE, below(4, 2, 8, 8)),
    ("binary_cross_entropy", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), R, P),
    ("with logits", F.binary_cross_entropy_with_logits, R, P),
    ("with logits and weights", lambda x, y, w: F.binary_cross_entropy_with_logits(
        x, y, w, reduction="none", pos_weight=w[0] * 3
    ), R, P, P),
    ("mse_loss", F.mse_loss, R, R),
    ("l1_loss", F.l1_loss, R, R),
    ("smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y, reduction="sum", beta=0.3), R, R),
    ("kl_div", lambda x, y: F.kl_div(x, y, reduction="batchmean"), R, P),
    ("poisson_nll_loss", F.poisson_nll_loss, R, P),
    ("soft_margin_loss", F.soft_margin_loss, R, lambda: torch.sign(torch.randn(3, 4))),
    ("triplet_margin_loss", F.triplet_margin_loss, R, R, R),
    ("HuberLoss", nn.HuberLoss(delta=0.4), R, R),
    ("MultiMarginLoss", nn.MultiMarginLoss(), R, below(4, 3)),
    ("MultiLabelMarginLoss", nn.MultiLabelMarginLoss(), R, below(4, 3, 4)),
    ("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss(), R, P),
    ("TripletMarginWithDistanceLoss", nn.TripletMarginWithDistanceLoss(), R, R, R),
    ("GaussianNLLLoss", nn.GaussianNLLLoss(), R, R, P),
]  # fmt: skip


def _compared(x, y):
    return x == y, x < y, x >= y, torch.logical_and(x, y), ~(x > y)


def _integer_sums(x):
    return x.sum(), x.cumsum(1), x.amax(1), x.argmax(1), x // 2, x % 2


BYTES = below(99, 3, 4, dtype=torch.uint8)
FORWARD_ONLY = [
    *[(f"sums of {kind}", _integer_sums, below(9, 3, 4, dtype=getattr(torch, kind)))
      for kind in ("int8", "uint8", "int16", "int32", "int64")],
    *[(f"bits of {kind}", lambda x, y: (x & y, x | y, x ^ y, ~x),
       below(2, 3, 4, dtype=getattr(torch, kind)), below(2, 3, 4, dtype=getattr(torch, kind)))
      for kind in ("bool", "int8", "uint8", "int32", "int64")],
    *[(f"half and {kind}", lambda x, y: (x.half() + y, x.half() * y, x.half() < y),
       R, below(9, 3, 4, dtype=getattr(torch, kind)))
      for kind in ("float16", "float32", "int32", "bool")],
    ("casts", lambda x: [x.to(t) for t in (torch.half, torch.int8, torch.bool, torch.double)], R),
    # Backward counts zeros in eager mode, and takes another way without values.
    ("prod", lambda x: (x.prod(), x.prod(1)), R),
    ("comparisons", _compared, R, R),
    ("comparisons of integers", _compared, INTS, INTS),
    ("comparisons of bytes", _compared, BYTES, BYTES),
    ("any and all", lambda x: (x.any(), x.all(1), x.sum(), x.logical_not()), coins(3, 4)),
    ("rounded quotients", lambda x, y: torch.div(x, y + 1, rounding_mode="floor"), INTS, INTS),
    ("shifts", lambda x: (x << 2, x >> 1), below(9, 3, 4, dtype=torch.int32)),
    ("finite or not", lambda x: (x.isnan(), (x / 0).isinf(), x.isfinite(), x.signbit()), R),
    ("argsort", lambda x: (x.argsort(1), x.argmin(), x.argmax(1, keepdim=True)), R),
    ("searchsorted", lambda x, y: torch.searchsorted(x.sort()[0], y), R, R),
    ("a new tensor", lambda x: x + torch.arange(4) + x.new_tensor([1.0]) + torch.ones_like(x), R),
    ("written input", lambda x: x.add_(1), R),
]  # fmt: skip
_DIFFERENTIABLE = POINTWISE + REDUCTIONS + SHAPES + INDEXING + PRODUCTS + MODULES


class Applied(nn.Module):
    """An operator on its inputs, the first scaled and shifted in training; or a module."""

    def __init__(self, function: Callable, loss: Callable | None):
        super().__init__()
        self.function, self._loss = copy.deepcopy(function), loss
        self.scale = nn.Parameter(torch.tensor(0.75))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x, *others):
        if self._loss is None:
            return self.function(x, *others)
        if x.is_floating_point():
            x = x * self.scale + self.shift
        result = self.function(x, *others)
        return result, self._loss(result)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value:
            yield from _tensors(item)


class Together(nn.Module):
    """Operators of several lines, and a loss of all their results."""

    def __init__(self, lines: Sequence[tuple]):
        super().__init__()
        self.parts = nn.ModuleList(Applied(line[1], _total) for line in lines)
        self._counts = [len(line) - 2 for line in lines]

    def forward(self, *inputs):
        given, results, losses = iter(inputs), [], []
        for part, count in zip(self.parts, self._counts, strict=True):
            result, loss = part(*itertools.islice(given, count))
            results.append(result)
            losses.append(loss)
        return results, poptorch.identity_loss(torch.stack(losses), reduction="sum")


def _total(result: Any) -> torch.Tensor:
    floats = [value for value in _tensors(result) if value.is_floating_point()]
    return torch.stack([(value * value).sum() + value.sum() for value in floats]).sum()


def _assert_same(actual: Any, expected: Any):
    actual, expected = list(_tensors(actual)), list(_tensors(expected))
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        wanted = theirs.detach().to(_NARROW.get(theirs.dtype, theirs.dtype))
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0, equal_nan=True)


def _cases(*lines: tuple) -> Any:
    cases = [pytest.param(line[1], line[2:], id=line[0]) for line in lines]
    return pytest.mark.parametrize(("function", "makers"), cases)


def _batched(lines: Sequence[tuple], count: int) -> list[Sequence[tuple]]:
    return [lines[i : i + count] for i in range(0, len(lines), count)]


@_cases(*PRODUCTS, *MODULES, *LOSSES, *FORWARD_ONLY)
def test_inference(function, makers):
    model = Applied(function, None)
    inputs = [make() for make in makers]
    with torch.no_grad():
        expected = copy.deepcopy(model)(*(value.clone() for value in inputs))
    _assert_same(poptorch.inferenceModel(model, options())(*inputs), expected)


def _one_step(model, makers):
    plain = copy.deepcopy(model)
    inputs = [make() for make in makers]
    wrapped = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), 0.01))
    optimizer = torch.optim.SGD(plain.parameters(), 0.01)
    expected = plain(*inputs)
    expected[1].sum().backward()
    optimizer.step()
    _assert_same(wrapped(*inputs), expected)
    for key, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


@pytest.mark.parametrize(
    "lines", [pytest.param(each, id=f"from {each[0][0]}") for each in _batched(_DIFFERENTIABLE, 8)]
)
def test_training(lines):
    _one_step(Together(lines), [maker for line in lines for maker in line[2:]])


@_cases(*LOSSES)
def test_losses(function, makers):
    _one_step(Applied(function, lambda result: result), makers)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.nll_loss])
def test_classes_may_be_int32_as_wrapped_models_return_them(loss):
    scores, classes = torch.randn(3, 4), torch.tensor([2, 0, 3])
    wrapped = poptorch.inferenceModel(Applied(loss, None), options())
    _assert_same(wrapped(scores, classes.int()), loss(scores, classes))


def test_numbers_are_drawn_in_place_between_bounds():
    wrapped = poptorch.inferenceModel(Applied(lambda x: x.clone().random_(3, 6), None), options())
    drawn = wrapped(torch.zeros(100))
    assert set(drawn.tolist()) == {3.0, 4.0, 5.0}
    assert not torch.equal(wrapped(torch.zeros(100)), drawn)


@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
def test_embeddings_that_ask_for_sparse_gradients_train_as_in_torch(bag):
    torch.manual_seed(0)
    made = torch.nn.EmbeddingBag(7, 3, mode="sum", sparse=True)
    table = made if bag else torch.nn.Embedding(7, 3, sparse=True)
    plain = copy.deepcopy(table)
    words = torch.tensor([[1, 4], [4, 4], [0, 6]])

    def loss(model):
        return model(words).square().sum()

    loss(plain).backward()
    assert plain.weight.grad.is_sparse
    torch.optim.SGD(plain.parameters(), lr=0.1).step()

    class Squares(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = table

        def forward(self, words):
            return poptorch.identity_loss(self.table(words).square(), "sum")

    model = Squares()
    wrapped = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="sparse=True gets a dense gradient"):
        wrapped(words)
    torch.testing.assert_close(table.weight, plain.weight, rtol=1e-6, atol=0)
