"""Modules that are compiled, scripted, lazy or without data, complex numbers, checkpoints."""

import pytest
import torch
from torch import nn

import poptorch
from helpers.wrapping import options, sgd

# Torch's own, when it scripts or imports its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
X = torch.arange(12.0).reshape(4, 3) / 10


class Loss(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return poptorch.identity_loss(self.inner(self.fc(x)).pow(2), "mean")


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs = nn.Parameter(torch.ones(3, 2))
        self.whole = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.turn = torch.polar(torch.ones(3), torch.arange(3.0))

    def forward(self, x):
        z = torch.view_as_complex(self.pairs) * x * self.whole * (1 + 2j) * self.turn
        spectrum = torch.fft.fft(z) * z.conj()
        return (z * z.conj()).real + torch.fft.ifft(spectrum).abs() + (2j * z).imag


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.fc, x, use_reentrant=True)


class CompiledInside(nn.Module):
    def forward(self, x):
        return torch.compile(torch.sin)(x)


def compiled_in_place():
    module = nn.Linear(3, 3)
    module.compile()
    return Loss(module)


def made(make):
    torch.manual_seed(0)
    return make()


COMPUTED = {
    "complex": lambda: Loss(Complex()),
    "compiled submodule": lambda: Loss(torch.compile(nn.Linear(3, 3))),
    "compiled model": lambda: torch.compile(Loss(nn.Tanh())),
    "compiled in place": compiled_in_place,
    "compiled function": lambda: Loss(CompiledInside()),
}


@pytest.mark.parametrize("make", COMPUTED.values(), ids=COMPUTED)
def test_modules_that_train_like_plain_ones(make):
    model, plain = made(make), made(make)
    plain = getattr(plain, "_orig_mod", plain)
    plain.inner = getattr(plain.inner, "_orig_mod", plain.inner)
    wrapped, optimizer = poptorch.trainingModel(model, options(), sgd(model)), sgd(plain)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            optimizer.zero_grad()
            loss = plain(X)
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(wrapped(X), loss.detach())
    for actual, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.detach(), expected.detach())


REFUSED = {
    "scripted": (
        lambda: torch.jit.script(nn.Linear(3, 3)), r"Submodule inner is a TorchScript module"),
    "traced": (
        lambda: torch.jit.trace(nn.Linear(3, 3), X), r"Submodule inner is a TorchScript module"),
    "lazy": (lambda: nn.LazyLinear(3), r"inner\.weight is not initialised.*Call the model once"),
    "lazy buffers": (
        lambda: nn.LazyBatchNorm1d(affine=False), r"inner\.running_mean is not initialised"),
    "meta": (lambda: nn.Linear(3, 3, device="meta"), r"inner\.weight is on the meta device"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_modules_that_no_program_can_be_made_of(make, words):
    with pytest.raises(poptorch.Error, match=words):
        poptorch.trainingModel(Loss(make()), options())(X)
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Loss(make()), options())(X)


def test_a_lazy_module_trains_after_its_first_call():
    model = Loss(nn.LazyLinear(3))
    testing = poptorch.inferenceModel(model, options())
    expected = model(X).detach()
    assert torch.equal(testing(X), expected)
    assert torch.equal(poptorch.trainingModel(model, options())(X), expected)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_is_refused_in_training_only():
    model = Loss(Checkpointed())
    assert torch.equal(poptorch.inferenceModel(model, options())(X), model(X).detach())
    line = r"at \S+test_unusual_modules.py:\d+: `return torch.utils.checkpoint.checkpoint\(self.fc"
    with pytest.raises(poptorch.Error, match=rf"{line}.*Pass use_reentrant=False"):
        poptorch.trainingModel(model, options())(X)


def test_a_reentrant_checkpoint_of_an_input_is_refused_because_it_would_not_train():
    class Asking(Checkpointed):
        def forward(self, x):
            return super().forward(x.requires_grad_())

    with pytest.raises(poptorch.Error, match="Pass use_reentrant=False"):
        poptorch.trainingModel(Loss(Asking()), options())(X)


@pytest.mark.parametrize("value", [3.0, [torch.ones(1)], None])
def test_a_loss_that_is_no_tensor_is_refused(value):
    with pytest.raises(
        poptorch.Error, match=r"identity_loss takes a torch\.Tensor, found .* of type"
    ):
        poptorch.identity_loss(value, "sum")


@pytest.mark.parametrize(
    ("loss", "reduction", "kind"),
    [(X, 3.0, AssertionError), (3.0, "sum", poptorch.Error), (X.int(), "sum", poptorch.Error)],
    ids=["reduction", "value", "dtype"],
)
def test_a_wrong_use_of_identity_loss_names_its_line(loss, reduction, kind):
    class Wrong(nn.Module):
        def forward(self, x):
            return poptorch.identity_loss(loss, reduction)

    with pytest.raises(kind, match=r"at \S+test_unusual_modules.py:\d+: `return poptorch.identity"):
        poptorch.trainingModel(Loss(Wrong()), options())(X)
