"""The ladder for half models: eager = reference, bitwise; compiled close to it.

The eager rule: forward and backward in half, products and convolutions computed in float32 and
rounded once; gradients and weights are widened, the update is
torch.optim's in float32 on float32 state, and the new weight is rounded to half once.

Compiled code keeps intermediate values of a chain of operations in float32 where eager rounds each
to half, so it is more exact than the reference; 5e-3 of a tensor's norm (five times the rounding
of one half) is allowed after ten steps.
"""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from abele import StepConfig
from abele.compilation.verdict import HALF_TOLERANCE
from abele.ops import half_products
from abele.step.loss_scaling import AutomaticScaling
from garment_model import ClassificationModel
from helpers.runs import (
    HalfProductsInFloat32,
    Trained,
    assert_close_by_norm,
    assert_same_bits,
    flat,
    rule_for,
    run,
    run_eagerly,
    started,
)

STEPS = 10
HALVES = [torch.float16, torch.bfloat16]


class Mixed(nn.Module):
    """Embedding, convolution, two norms, attention and dense layers; the loss in float32."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1, bias=False)
        self.batch_norm = nn.BatchNorm1d(16)
        self.attention = nn.MultiheadAttention(16, 2, bias=False, batch_first=True)
        self.layer_norm = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 5)

    def forward(self, tokens, labels):
        x = self.embedding(tokens).transpose(1, 2)
        x = F.gelu(self.batch_norm(self.conv(x))).transpose(1, 2)
        x = self.layer_norm(x + self.attention(x, x, x, need_weights=False)[0])
        scores = self.fc(x.mean(1))
        return scores, F.cross_entropy(scores.float(), labels)


def fresh(kind, *, float_statistics=False):
    torch.manual_seed(7)
    module = Mixed().to(kind)
    if float_statistics:
        module.batch_norm.float()
    return module


def batches(count=STEPS, rows=8):
    g = torch.Generator().manual_seed(11)
    return [
        (torch.randint(0, 20, (rows, 6), generator=g), torch.randint(0, 5, (rows,), generator=g))
        for _ in range(count)
    ]


def eager(module, optimizer, scale=1.0, **settings):
    """The loop everybody writes for half weights with float32 updates."""
    torch.manual_seed(3)
    wide = {name: value.detach().float() for name, value in module.named_parameters()}
    stepping = optimizer(wide.values(), **settings)
    outputs = []
    for batch in batches():
        module.zero_grad()
        with HalfProductsInFloat32():
            results = flat(module(*batch))
            results[-1].backward(torch.tensor(scale))
        for name, value in module.named_parameters():
            wide[name].copy_(value.detach())
            wide[name].grad = value.grad.float() / scale
        stepping.step()
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(wide[name])
        outputs.append([value.detach() for value in results])
    params = {name: value.detach() for name, value in module.named_parameters()}
    return Trained(outputs, params, dict(module.named_buffers()))


def trained(module, kind, scale, target, **values):
    settings = {"loss_scaling": scale}
    rule = rule_for(module, kind, settings=settings, **values)
    session, _ = started(module, batches()[0], rule, target=target)
    return run(session, batches())


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.003}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
}


def each_once():
    """Every optimizer in both types, one of them with a loss scale; all four are long."""
    for optimizer, kind, scale in itertools.product(OPTIMIZERS, HALVES, (1.0, 1024.0)):
        often = (kind is torch.float16) == (scale != 1.0)
        marks = [] if often else [pytest.mark.long]
        yield pytest.param(kind, scale, optimizer, marks=marks, id=f"{kind}-{scale}-{optimizer}")


@pytest.mark.parametrize(("kind", "scale", "optimizer"), [*each_once()])
def test_the_reference_is_the_eager_rule_bit_by_bit(kind, scale, optimizer):
    made, values = OPTIMIZERS[optimizer]
    actual = trained(fresh(kind), optimizer, scale, "reference", **values)
    assert_same_bits(actual, eager(fresh(kind), made, scale, **values))
    assert all(value.dtype is kind for value in actual.params.values())


def test_float_statistics_in_a_half_model():
    module = fresh(torch.float16, float_statistics=True)
    actual = trained(module, "sgd", 128.0, "reference", lr=0.05, momentum=0.9)
    assert actual.buffers["batch_norm.running_mean"].dtype is torch.float32
    expected = eager(copy.deepcopy(module), *[OPTIMIZERS["sgd"][0]], 128.0, lr=0.05, momentum=0.9)
    assert_same_bits(actual, expected)


class Short(Mixed):
    """Without what takes the compiler longest."""

    def forward(self, tokens, labels):
        x = F.gelu(self.batch_norm(self.embedding(tokens).transpose(1, 2))).transpose(1, 2)
        scores = self.fc(self.layer_norm(x).mean(1))
        return scores, F.cross_entropy(scores.float(), labels)


def test_compiled_training_with_a_scale_that_adapts_is_close_to_the_reference(target):
    if target.name == "reference":
        pytest.skip("the reference is what the others are compared with")
    results, scales = [], []
    for each in (target, "reference"):
        torch.manual_seed(7)
        module = Short().half()
        settings = {"loss_scaling": 128.0, "loss_scaling_variable": True}
        settings |= {"automatic_scaling": AutomaticScaling(period=3)}
        rule = rule_for(module, settings=settings, **OPTIMIZERS["sgd"][1])
        session, _ = started(module, batches()[0], rule, target=each)
        results.append(run(session, batches()))
        scales.append(session.hyper["loss_scaling"].item())
    assert_close_by_norm(*results, HALF_TOLERANCE)
    assert scales == [1024.0, 1024.0]


@pytest.mark.thorough  # compiled; the training step above always is
def test_compiled_inference_is_close_to_eager(target):
    module = fresh(torch.float16).eval()
    tolerance = 0.0 if target.name == "reference" else HALF_TOLERANCE
    session, _ = started(module, batches()[0], None, StepConfig(training=False), target=target)
    scores = session.step([value.to(session.device) for value in batches()[0]])[0].cpu()
    assert scores.dtype is torch.float16
    with torch.no_grad():
        expected = module(*batches()[0])[0]
    difference = torch.linalg.vector_norm((scores - expected).double())
    assert difference <= tolerance * torch.linalg.vector_norm(expected.double())


def test_half_state_and_accumulators_stay_close_to_float_ones():
    results = []
    for kind in (torch.float16, torch.float32):
        module = fresh(torch.float16)
        settings = {
            "loss_scaling": 128.0,
            "accumulator_dtype": kind,
            "state_dtypes": {"momentum_buffer": kind},
        }
        rule = rule_for(module, settings=settings)
        config = StepConfig(gradient_accumulation=2)
        session, _ = started(module, batches()[0], rule, config)
        results.append(run(session, batches(rows=16)))
        assert {value.dtype for value in session.optimizer_state.values()} == {kind}
        assert {value.dtype for value in session.accumulators.values()} == {kind}
    assert_close_by_norm(*results, 2e-2)
    assert any(
        not torch.equal(value, results[1].params[name]) for name, value in results[0].params.items()
    )


class Overflowing(nn.Module):
    """A mean of squares that float16 has no number for, though it has one for their root."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, wanted):
        y = self.fc(x) * 400
        root = y.pow(2).mean(1, keepdim=True).sqrt()
        return F.mse_loss((y / root).float(), wanted)


def test_compiled_programs_may_stay_finite_where_float16_overflows():
    torch.manual_seed(0)
    module, optimizer = Overflowing().half(), poptorch.optim.SGD
    options = poptorch.Options().showCompilationProgressBar(False).startMode("wait")
    model = poptorch.trainingModel(module, options, optimizer(module.parameters(), lr=0.1))
    loss = model(torch.randn(4, 8).half() * 10, torch.randn(4, 8))
    assert loss.isfinite()
    assert not model.build_record.running.interpreted
    assert model.build_record.running.check.endswith("(float32)")
    assert all(value.isfinite().all() for value in module.state_dict().values())


@pytest.mark.parametrize("kind", HALVES)
def test_products_and_norms_of_16_bits_are_as_close_to_float64_as_the_reference(kind, target):
    if target.name == "reference":
        pytest.skip("the reference is what the others are compared with")
    g = torch.Generator().manual_seed(5)
    images, labels = torch.randn(16, 1, 28, 28, generator=g).to(kind), torch.arange(16) % 10

    def weights(where, dtype):
        torch.manual_seed(7)
        module, batch = ClassificationModel().to(kind).to(dtype), (images.to(dtype), labels)
        rule = rule_for(module, "sgd", settings={"loss_scaling": 128.0}, lr=0.05, momentum=0.9)
        made = run(started(module, batch, rule, target=where)[0], [batch] * 3).params
        return torch.cat([value.double().flatten() for value in made.values()])

    exact = weights("reference", torch.float64)
    ours, theirs = ((weights(each, kind) - exact).norm() for each in (target, "reference"))
    assert ours <= 1.1 * theirs


class Cast(nn.Module):
    """An image's patches, attention between them and a norm, under automatic casting or not."""

    def __init__(self, autocast):
        super().__init__()
        self.autocast = autocast
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.norm, self.into, self.out = nn.LayerNorm(24), nn.Linear(24, 72), nn.Linear(24, 5)

    def forward(self, images, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            x = self.patches(images).flatten(2).transpose(1, 2)
            parts = self.into(self.norm(x)).unflatten(2, (3, 4, 6)).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
            scores = self.out(F.gelu(seen)).mean(1)
        return scores, F.cross_entropy(scores, labels)


class Convolved(nn.Module):
    """Convolutions of 3x3 with biases, and enough channels and tiles for Winograd's algorithm."""

    def __init__(self):
        super().__init__()
        self.into = nn.Conv2d(3, 32, 3, padding=1)
        self.first, self.second = nn.Conv2d(32, 48, 3, padding=1), nn.Conv2d(48, 32, 3)

    def forward(self, images, labels):
        x = self.second(F.relu(self.first(F.relu(self.into(images)))))
        return x, F.cross_entropy(x.mean((2, 3)), labels)


@pytest.mark.parametrize("network", ["autocast", "patches", "convolutions"])
def test_bfloat16_training_is_as_close_to_float64_as_plain_pytorch(network, target, monkeypatch):
    autocast = network == "autocast"
    if network == "convolutions" and target.name == "cpu":
        monkeypatch.setenv("ABELE_LOWERING", "op_by_op")
    monkeypatch.setattr(half_products, "has_bfloat16_tiles", lambda: False)
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    g = torch.Generator().manual_seed(5)
    images, labels = torch.randn(6, 3, 16, 16, generator=g).bfloat16(), torch.arange(6) % 5

    def made(dtype, casts):
        torch.manual_seed(7)
        module = Convolved() if network == "convolutions" else Cast(casts)
        return (module if autocast else module.bfloat16()).to(dtype)

    def eagerly(dtype, casts=False):
        module, batch = made(dtype, casts), (images.to(dtype), labels)
        return run_eagerly(module, torch.optim.SGD(module.parameters(), lr=0.5), [batch] * 4)

    kind = torch.float32 if autocast else torch.bfloat16
    module, batch = made(kind, autocast), (images.to(kind), labels)
    rule = rule_for(module, "sgd", lr=0.5, momentum=0.0)
    ours = run(started(module, batch, rule, target=target)[0], [batch] * 4)
    theirs, exact = eagerly(kind, autocast), eagerly(torch.float64)
    if autocast and target.name == "reference":
        assert_same_bits(ours, theirs)
    far = [
        torch.cat([(v.double() - exact.params[n]).flatten() for n, v in each.params.items()]).norm()
        for each in (ours, theirs)
    ]
    assert far[0] <= 1.1 * far[1]
    assert {value.dtype for value in ours.params.values()} == {kind}
    assert ours.outputs[0][0].dtype is theirs.outputs[0][0].dtype
