"""Functions whose own forms read values: static forms, constants, and checks while running."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import inference, sgd, trainer, trains_like_eager

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 2, 2, 4, 1, 0])
MASK = X > 0
FREQUENCIES = torch.tensor([1, 2, 0, 1, 3])


class Net(nn.Module):
    """A dense layer; the loss is the squared sum of what a test makes."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(5, 5), function
        self.mask = MASK.clone()

    def forward(self, x, *rest):
        result = self.function(self, self.fc(x), *rest)
        return poptorch.identity_loss(result.square().sum(), reduction="none"), result


def trained(function, *inputs, **tolerance):
    """The network, trained in a wrapper as in plain PyTorch."""
    torch.manual_seed(0)
    model = Net(function)
    trains_like_eager(model, [inputs] * 3, lambda m: sgd(m, lr=0.01), **tolerance)
    return model


STATIC = {
    "bincount": lambda m, h: h[:5] * torch.bincount(CLASSES.to(h.device), minlength=5),
    "bincount of inputs": lambda m, h, y: h * y.bincount(minlength=5),
    "weighted bincount": lambda m, h, y: h * torch.bincount(y, h[:, 0].detach().exp(), 5),
    "one_hot": lambda m, h, y: h * F.one_hot(y, 5),
    "cov": lambda m, h: torch.cov(h),
    "cov without correction": lambda m, h: h.cov(correction=0),
    "cov of one variable": lambda m, h: torch.cov(h[0]),
    "cov with frequencies": lambda m, h: torch.cov(h, fweights=FREQUENCIES),
    "corrcoef": lambda m, h: torch.corrcoef(h),
    "corrcoef of one variable": lambda m, h: h[0].corrcoef(),
    "gaussian_nll_loss": lambda m, h: F.gaussian_nll_loss(h, h.detach() + 1, h.exp()),
    "full gaussian_nll_loss": lambda m, h: nn.GaussianNLLLoss(full=True)(
        h, h.detach() + 1, h[:, 0].exp()
    ),
    "gaussian_nll_loss of one variance": lambda m, h: F.gaussian_nll_loss(
        h, h.detach(), h[:, :1].exp(), reduction="none"
    ),
    "gaussian_nll_loss of a number": lambda m, h: F.gaussian_nll_loss(h, h.detach() + 1, 0.5),
    "a mask of the model": lambda m, h: h[m.mask],
    "a mask behind an index": lambda m, h: h[1, m.mask[0]],
    "masked_select": lambda m, h: h.masked_select(m.mask[0]),
    "nonzero": lambda m, h: h[:, m.mask[0].nonzero()[:, 0]],
    "where": lambda m, h: h[torch.where(m.mask)],
    "unique": lambda m, h: h[torch.unique(CLASSES)],
    "repeat_interleave": lambda m, h: h.repeat_interleave(CLASSES, dim=0),
    "one_hot of constants": lambda m, h: h * F.one_hot(CLASSES),
    "istft of a window": lambda m, h, w: _sound(h, w),
    "narrow": lambda m, h, y: torch.narrow(h, 0, y[1], 3),
    "narrow from the end": lambda m, h, y: h.narrow(1, -y[3], 2),
    "equal": lambda m, h: h if torch.equal(CLASSES, CLASSES + 1) else -h,
}


@pytest.mark.filterwarnings("ignore:No device set")
@pytest.mark.parametrize("function", STATIC.values(), ids=STATIC)
def test_static_forms_train_with_the_bits_of_eager(function):
    last = function.__code__.co_varnames[2:3]
    inputs = (X, *{"y": (CLASSES,), "w": (torch.hann_window(8),)}.get("".join(last), ()))
    trained(function, *inputs)


def _sound(h, window):
    return torch.istft(torch.complex(h, h.cos())[:5], 8, 2, window=window)


STOPPED = {
    "bincount": (
        lambda x, y: x[:5, 0] * torch.bincount(y, minlength=5),
        CLASSES,
        CLASSES + 1,
        "bincount with minlength=5 has the values 0 to 4 .*found a value outside",
    ),
    "negative bincount": (
        lambda x, y: x[:5, 0] * torch.bincount(y, minlength=5),
        CLASSES,
        CLASSES - 1,
        "found a value outside",
    ),
    "one_hot": (
        lambda x, y: x[:, :, None] * F.one_hot(y, 5)[:, None],
        CLASSES,
        CLASSES + 1,
        "one_hot with num_classes=5 has the classes 0 to 4",
    ),
    "variance": (
        lambda x, y: F.gaussian_nll_loss(x, x + 1, y),
        MASK.float() + 0.5,
        MASK.float() - 0.5,
        "var has negative entry",
    ),
    "windows": (
        lambda x, y: _sound(x, y),
        torch.hann_window(8),
        torch.zeros(8),
        "sum of squares of overlapping windows is 0",
    ),
}


@pytest.mark.parametrize(("function", "good", "bad", "words"), STOPPED.values(), ids=STOPPED)
def test_values_that_the_form_cannot_take_stop_the_step(function, good, bad, words):
    wrapped = inference(function)
    expected = function(X, good)
    torch.testing.assert_close(wrapped(X, good), expected, rtol=0, atol=0)
    with pytest.raises(poptorch.Error, match=rf"test_static_forms.py:\d+: .*{words}"):
        wrapped(X, bad)
    torch.testing.assert_close(wrapped(X, good), expected, rtol=0, atol=0)


def test_a_step_that_is_stopped_changes_no_weight():
    model = Net(lambda m, h, y: h * F.one_hot(y, 5))
    wrapped = trainer(model)
    wrapped(X, CLASSES)
    before = model.fc.weight.detach().clone()
    with pytest.raises(poptorch.Error, match="found a class outside"):
        wrapped(X, CLASSES + 1)
    torch.testing.assert_close(model.fc.weight.detach(), before, rtol=0, atol=0)


REFUSED = {
    "a mask": (lambda x: x[x > 0].sum(), "index returns.*torch.where"),
    "masked_select": (lambda x: x.masked_select(x > 0).mean(), "masked_select.*mask.sum"),
    "nonzero": (lambda x: x.nonzero(), "nonzero returns"),
    "unique": (lambda x: torch.unique(x), "unique2 returns.*in the data set"),
    "bincount": (lambda x: torch.bincount(x[0].long().abs()), "Pass a minlength"),
    "repeat_interleave": (
        lambda x: x.repeat_interleave(x[:, 0].long().abs(), dim=0),
        "Pass output_size",
    ),
    "one_hot": (lambda x: F.one_hot(x.long().abs()), "Pass num_classes to one_hot"),
    "tensor_split": (lambda x: x.tensor_split(x[0].long())[0], "reads the value of a tensor"),
    "lstsq": (lambda x: torch.linalg.lstsq(x, x).solution, r"Use torch.linalg.pinv\(a\) @ b"),
    "several values": (lambda x: x.index_put((x > 0,), x[x > 0]), "index returns.*torch.where"),
    "weighted cov": (lambda x: torch.cov(x, aweights=x[0]), "reads the value of a tensor"),
}


@pytest.mark.parametrize(("function", "words"), REFUSED.values(), ids=REFUSED)
def test_shapes_that_depend_on_values_are_refused_with_line_and_remedy(function, words):
    line = rf"{re.escape(__file__)}:{function.__code__.co_firstlineno}: `"
    with pytest.raises(poptorch.Error, match=f"{line}.*{words}"):
        inference(function)(X)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.bincount(x.long().abs(), minlength=3), "only supports 1-d"),
        (lambda x: torch.bincount(x[0].long().abs(), x[1, :2], 3), "same length as input"),
        (lambda x: torch.cov(x[None]), "two or fewer dimensions"),
        (lambda x: torch.corrcoef(x[None]), "two or fewer dimensions"),
        (lambda x: F.gaussian_nll_loss(x, x, x[:2].abs()), "var is of incorrect size"),
        (lambda x: F.gaussian_nll_loss(x, x, x.abs(), reduction="no"), "no is not valid"),
    ],
)
@pytest.mark.filterwarnings("ignore:No device set")
def test_arguments_that_torch_refuses_are_refused_in_its_words(function, words):
    with pytest.raises(Exception, match=words) as eager:
        function(X)
    with pytest.raises(Exception, match=words) as wrapped:
        inference(function)(X)
    assert wrapped.type is eager.type


@pytest.mark.compiler
def test_compiled_programs_stop_with_the_same_error_and_go_on(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    wrapped = inference(lambda x, y: x * torch.bincount(y, minlength=5))
    torch.testing.assert_close(wrapped(X, CLASSES), X * CLASSES.bincount(minlength=5))
    with pytest.raises(poptorch.Error, match="bincount with minlength=5"):
        wrapped(X, CLASSES + 1)
    torch.testing.assert_close(wrapped(X, CLASSES), X * CLASSES.bincount(minlength=5))
