"""Modules and their containers, caches and closures after capture; modules of unusual kinds."""

import copy
import io
import types

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from torch.nn.utils import prune

import poptorch
from abele._torch import FakeTensor
from helpers.wrapping import inference, options, sgd

# Torch's own, when it scripts or imports its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")
X = torch.arange(6.0).reshape(2, 3)


class Lazy(nn.Module):
    """A table of constants, made when it is first needed."""

    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.arange(3.0).cos(), [torch.arange(3.0).sin()]
        return x * self.cache[0] + self.cache[1][0]


class OfWeight(nn.Module):
    """What is made of a weight belongs to the weight's value, and so does the flag."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.ready = False
        self.counts = []

    def forward(self, x):
        self.counts.append(self.weight * 2)
        if not self.ready:
            self.doubled, self.ready = self.weight * 2, True
        return x * self.doubled


class Slotted(nn.Module):
    class Store:
        __slots__ = ("kept", "parts")

    def __init__(self):
        super().__init__()
        self.store = self.Store()
        self.other = types.SimpleNamespace(deep=[{"t": None}], seen=set())

    def forward(self, x):
        self.store.kept = x + 1
        self.other.deep[0]["t"] = torch.ones(3)
        self.other.seen.add(x)
        self.other.deep.append((x,))
        return x * self.other.deep[0]["t"]


def hooked():
    features, gradients = {}, []
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    module.features, module.gradients = features, gradients

    def keep(layer, args, result):
        features["linear"] = result
        if result.requires_grad:
            result.register_hook(gradients.append)

    module[0].register_forward_hook(keep)
    return module


def pruned():
    layer = nn.Linear(3, 3)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return nn.Sequential(layer)


def normed():
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)))


class Loss(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        y = self.inner(x) * self.weight
        return poptorch.identity_loss(y, "mean"), y


MAKERS = {
    "lazy cache": Lazy,
    "lazy cache in a list": lambda: nn.Sequential(Lazy(), nn.ModuleList([Lazy()])[0]),
    "slots and sets": Slotted,
    "hooks": hooked,
    "pruned": pruned,
    "weight norm": normed,
    "spectral norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
}


def fakes_in(*roots):
    """Paths to tensors without data, found by another way than the engine's."""
    stack, seen, results = [("", root) for root in roots], set(), []
    while stack:
        path, value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            results += [path] if isinstance(value, FakeTensor) else []
        elif isinstance(value, dict):
            stack += [(f"{path}[{k}]", part) for k, v in value.items() for part in (k, v)]
        elif isinstance(value, list | tuple | set):
            stack += [(f"{path}[]", part) for part in value]
        else:
            stack += [(f"{path}.{k}", v) for k, v in getattr(value, "__dict__", {}).items()]
            for name in getattr(type(value), "__slots__", ()):
                stack.append((f"{path}.{name}", getattr(value, name, None)))
    return results


def loss_on_host(model, x):
    return model(x)[1].detach()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_module_is_whole_after_it_was_captured(make):
    torch.manual_seed(0)
    model = Loss(make())
    torch.manual_seed(0)
    plain = Loss(make())
    wrapped = poptorch.trainingModel(model, options(), sgd(model))
    optimizer = sgd(plain)
    for _ in range(2):
        optimizer.zero_grad()
        loss, y = plain(X)
        loss.backward()
        optimizer.step()
        output = wrapped(X)
        torch.testing.assert_close(output[1], y.detach())
    assert not fakes_in(model, wrapped._wrapped.module)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    again = poptorch.inferenceModel(model, options())
    expected = plain(X)[1].detach()
    torch.testing.assert_close(again(X)[1], expected)
    torch.testing.assert_close(loss_on_host(model, X), expected)
    wrapped.destroy()
    wrapped(X)  # captured once more


def test_constants_get_their_values_and_the_rest_is_put_back():
    model = Loss(nn.Sequential(Lazy(), OfWeight(), Slotted()))
    lazy, weight, slotted = model.inner
    poptorch.trainingModel(model, options(), sgd(model))(X)
    assert torch.equal(lazy.cache[0], torch.arange(3.0).cos())
    assert torch.equal(lazy.cache[1][0], torch.arange(3.0).sin())
    assert not weight.ready
    assert not hasattr(weight, "doubled")
    assert weight.counts == []
    assert not hasattr(slotted.store, "kept")
    assert torch.equal(slotted.other.deep[0]["t"], torch.ones(3))
    assert (len(slotted.other.deep), slotted.other.seen) == (1, set())
    copy.deepcopy(model)


def test_a_forward_that_fails_leaves_nothing_either():
    class Fails(Lazy):
        def forward(self, x):
            self.seen = x
            super().forward(x)
            raise ValueError("no")

    inner = Fails()
    with pytest.raises(ValueError, match="no"):
        poptorch.inferenceModel(nn.Sequential(inner), options())(X)
    assert inner.cache is None
    assert not hasattr(inner, "seen")


def test_arguments_are_whole_too():
    class Writes(nn.Module):
        def forward(self, x, context):
            context.hidden, context.table = x + 1, torch.ones(3)
            context.states.append(x)
            return context.hidden * context.table

    context = types.SimpleNamespace(states=[], hidden=None, table=None)
    wrapped = poptorch.inferenceModel(Writes(), options())
    for _ in range(2):
        assert torch.equal(wrapped(X, context), X + 1)
    assert context == types.SimpleNamespace(states=[], hidden=None, table=None)


def test_a_module_made_in_forward_is_refused():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential()

        def forward(self, x):
            if len(self.inner) == 0:
                self.inner.append(nn.Linear(3, 1))
            return poptorch.identity_loss(self.inner(x), "mean")

    model = Grows()
    with pytest.raises(
        poptorch.Error, match=r"Parameter inner\.0\.weight is added to the model in"
    ):
        poptorch.trainingModel(model, options())(X)
    assert len(model.inner) == 0


class LossInForward(nn.Module):
    """A classifier that makes a module of its own in forward and keeps it."""

    def __init__(self, make, registered):
        super().__init__()
        self.make, self.fc = make, nn.Linear(3, 3)
        weights = torch.tensor([1.0, 2.0, 0.5])
        if registered:
            self.register_buffer("weights", weights)
        else:
            self.weights = weights

    def forward(self, x, labels):
        self.loss_fct = self.make(self)
        return self.loss_fct(self.fc(x), labels)


class Tied(nn.Module):
    """A child whose parameter is one of the model."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, scores, labels):
        loss = F.cross_entropy(scores, labels) + self.weight.square().sum()
        return poptorch.identity_loss(loss, "none")


def with_empty_places(model):
    model.register_buffer("nothing", None)
    model.register_parameter("none", None)
    return nn.CrossEntropyLoss()


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: nn.CrossEntropyLoss(),
        lambda model: nn.CrossEntropyLoss(weight=model.weights),
        lambda model: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5])),
        lambda model: nn.MultiMarginLoss(),
        lambda model: Tied(model.fc.weight),
        with_empty_places,
    ],
)
def test_a_loss_made_in_forward_trains_as_in_plain_pytorch(make, registered):
    torch.manual_seed(0)
    model = LossInForward(make, registered)
    plain, labels = copy.deepcopy(model), torch.tensor([2, 0])
    optimizer = sgd(plain)
    for run in range(2):  # a second wrapper finds what the first has left
        wrapped = poptorch.trainingModel(model, options(), sgd(model))
        for _ in range(2):
            optimizer.zero_grad()
            expected = plain(X, labels)
            expected.backward()
            optimizer.step()
            assert torch.equal(wrapped(X, labels), expected.detach()), run
        wrapped.copyWeightsToHost()
        wrapped.destroy()
    assert torch.equal(model.fc.weight, plain.fc.weight)
    assert not any(fakes_in(model))
    evaluated = poptorch.inferenceModel(model.eval(), options())(X, labels)
    assert torch.equal(evaluated, plain.eval()(X, labels))


class Counter(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.register_buffer("count", start)

    def forward(self, scores, labels):
        self.count += 1
        return poptorch.identity_loss(F.cross_entropy(scores, labels) * self.count, "none")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda model: nn.CrossEntropyLoss(weight=model.weights / 2), r"Buffer loss_fct\.weight"),
        (lambda model: Counter(torch.zeros(())), r"Buffer loss_fct\.count"),
        (lambda model: Tied(nn.Parameter(torch.ones(3))), r"Parameter loss_fct\.weight"),
    ],
)
def test_new_state_made_in_forward_is_refused(make, name):
    model = LossInForward(make, registered=True)
    with pytest.raises(poptorch.Error, match=f"{name} is added to the model in forward"):
        poptorch.trainingModel(model, options(), sgd(model))(X, torch.tensor([2, 0]))
    assert not hasattr(model, "loss_fct")


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: (x * i for i in range(2)), "generator"),
        (lambda x: {x, x + 1}, "set"),
        (lambda x: [map(torch.neg, [x])], "map"),
        (lambda x: lambda: x, "function"),
        (lambda x: types.SimpleNamespace(a=[{"b": x}]), "SimpleNamespace"),
    ],
)
def test_results_that_hide_tensors_are_refused(function, kind):
    with pytest.raises(poptorch.Error, match=f"forward returned a {kind}, wh"):
        inference(function)(X)


# -- modules that are compiled, scripted, lazy or without data, complex numbers, checkpoints ------

ROWS = torch.arange(12.0).reshape(4, 3) / 10


class Mean(nn.Module):
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


def compiled_in_place():
    module = nn.Linear(3, 3)
    module.compile()
    return Mean(module)


def made(make):
    torch.manual_seed(0)
    return make()


COMPUTED = {
    "complex": lambda: Mean(Complex()),
    "compiled submodule": lambda: Mean(torch.compile(nn.Linear(3, 3))),
    "compiled model": lambda: torch.compile(Mean(nn.Tanh())),
    "compiled in place": compiled_in_place,
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
            loss = plain(ROWS)
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(wrapped(ROWS), loss.detach())
    for actual, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.detach(), expected.detach())


REFUSED = {
    "scripted": (
        lambda: torch.jit.script(nn.Linear(3, 3)), r"Submodule inner is a TorchScript module"),
    "traced": (
        lambda: torch.jit.trace(nn.Linear(3, 3), ROWS), r"Submodule inner is a TorchScript module"),
    "lazy": (lambda: nn.LazyLinear(3), r"inner\.weight is not initialised.*Call the model once"),
    "lazy buffers": (
        lambda: nn.LazyBatchNorm1d(affine=False), r"inner\.running_mean is not initialised"),
    "meta": (lambda: nn.Linear(3, 3, device="meta"), r"inner\.weight is on the meta device"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_modules_that_no_program_can_be_made_of(make, words):
    with pytest.raises(poptorch.Error, match=words):
        poptorch.trainingModel(Mean(make()), options())(ROWS)
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Mean(make()), options())(ROWS)


def test_a_lazy_module_trains_after_its_first_call():
    model = Mean(nn.LazyLinear(3))
    testing = poptorch.inferenceModel(model, options())
    expected = model(ROWS).detach()
    assert torch.equal(testing(ROWS), expected)
    assert torch.equal(poptorch.trainingModel(model, options())(ROWS), expected)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_is_refused_in_training_only():
    model = Mean(Checkpointed())
    assert torch.equal(poptorch.inferenceModel(model, options())(ROWS), model(ROWS).detach())
    with pytest.raises(poptorch.Error, match="Pass use_reentrant=False"):
        poptorch.trainingModel(model, options())(ROWS)


def test_a_reentrant_checkpoint_of_an_input_is_refused_because_it_would_not_train():
    class Asking(Checkpointed):
        def forward(self, x):
            return super().forward(x.requires_grad_())

    with pytest.raises(poptorch.Error, match="Pass use_reentrant=False"):
        poptorch.trainingModel(Mean(Asking()), options())(ROWS)


@pytest.mark.parametrize("value", [3.0, [torch.ones(1)], None])
def test_a_loss_that_is_no_tensor_is_refused(value):
    with pytest.raises(
        poptorch.Error, match=r"identity_loss takes a torch\.Tensor, found .* of type"
    ):
        poptorch.identity_loss(value, "sum")


@pytest.mark.parametrize(
    ("loss", "reduction", "kind"),
    [
        (ROWS, 3.0, AssertionError),
        (3.0, "sum", poptorch.Error),
        (ROWS.int(), "sum", poptorch.Error),
    ],
    ids=["reduction", "value", "dtype"],
)
def test_a_wrong_use_of_identity_loss_names_its_line(loss, reduction, kind):
    class Wrong(nn.Module):
        def forward(self, x):
            return poptorch.identity_loss(loss, reduction)

    with pytest.raises(kind, match=r"at \S+test_whole_modules.py:\d+: `return poptorch.identity"):
        poptorch.trainingModel(Mean(Wrong()), options())(ROWS)
