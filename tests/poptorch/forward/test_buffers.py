"""Buffers live on the device, are written in place there, and come home with the parameters."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import options, sgd, trainer

# Said of every Counter; test_traps.py looks at it.
pytestmark = pytest.mark.filterwarnings("ignore:forward computes a new value of Counter.note")


class Counter(torch.nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.note = torch.zeros(3)

    def forward(self, x):
        self.count += 1
        self.note = self.note + 1
        return F.mse_loss(x * self.weight, x + self.count)


@pytest.mark.parametrize(
    ("settings", "per_call"),
    [
        ({}, 1),
        ({"deviceIterations": 2, "gradientAccumulation": 3}, 6),
        ({"replicationFactor": 2, "broadcastBuffers": False}, 1),
    ],
    ids=["one micro-batch", "iterations and accumulation", "each replica counts for itself"],
)
def test_a_counter_counts_micro_batches(settings, per_call):
    model = Counter()
    wrapped = trainer(model, **settings)
    for calls in (1, 2):
        wrapped(torch.randn(12, 3))
        assert model.count.item() == calls * per_call


def test_training_computes_with_the_buffer_of_each_micro_batch():
    model, plain = Counter(), Counter()
    wrapped = trainer(
        model, sgd(model, 0.0), deviceIterations=3, outputMode=poptorch.OutputMode.All
    )
    x = torch.randn(3, 3)
    expected = torch.stack([plain(row) for row in x.split(1)])
    assert torch.equal(wrapped(x), expected.detach())


def test_inference_brings_buffers_home_only_when_asked():
    model = Counter()
    wrapped = poptorch.inferenceModel(model, options(deviceIterations=2))
    wrapped(torch.randn(2, 3))
    assert model.count.item() == 0
    wrapped.copyWeightsToHost()
    assert model.count.item() == 2


def _normalised():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3), Loss())


class Loss(torch.nn.Module):
    def forward(self, scores):
        return F.mse_loss(scores, torch.zeros_like(scores))


def test_batch_norm_sees_one_micro_batch_at_a_time():
    model, plain, x = _normalised(), _normalised(), torch.randn(12, 3)
    trainer(model, deviceIterations=2, gradientAccumulation=3)(x)
    for part in x.split(2):
        plain(part)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(model[0], name), getattr(plain[0], name))


def test_replicas_have_statistics_of_their_own_and_the_first_is_read():
    model, plain, x = _normalised(), _normalised(), torch.randn(8, 3)
    trainer(model, replicationFactor=2)(x)
    plain(x[:4])
    assert torch.equal(model[0].running_mean, plain[0].running_mean)


def test_buffers_of_a_trained_model_can_be_copied_and_are_plain():
    model = Counter()
    trainer(model)(torch.randn(2, 3))
    other = copy.deepcopy(model)
    assert type(other.count) is torch.Tensor
    assert other.count.item() == 1
    assert type(model.state_dict()["count"]) is torch.Tensor


class Shifted(torch.nn.Module):
    """Adds two buffers to its input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(3))
        self.register_buffer("second", torch.zeros(3))

    def forward(self, x):
        return x + self.first + self.second


def test_only_named_buffers_are_sent():
    model = Shifted()
    wrapped = poptorch.inferenceModel(model, options(updatableNamedBuffers=["first"]))
    wrapped(torch.zeros(1, 3))
    model.first.fill_(1.0)
    model.second.fill_(10.0)
    wrapped.copyNamedBuffersToDevice()
    with pytest.warns(poptorch.HostChangeWarning, match="^second of the host"):
        result = wrapped(torch.zeros(1, 3))
    torch.testing.assert_close(result, torch.ones(1, 3))


def test_a_buffer_that_does_not_exist_is_named():
    wrapped = poptorch.inferenceModel(Shifted(), options(updatableNamedBuffers=["third"]))
    wrapped(torch.zeros(1, 3))
    with pytest.raises(poptorch.Error, match=r"names \['third'\].*'first', 'second'"):
        wrapped.copyNamedBuffersToDevice()


def test_named_buffers_may_be_sent_before_the_first_call_which_sends_all():
    model = Shifted()
    wrapped = poptorch.inferenceModel(model, options(updatableNamedBuffers=["first"]))
    for value in (1.0, 2.0):
        model.first.fill_(value)
        wrapped.copyNamedBuffersToDevice()
        result = wrapped(torch.zeros(1, 3))
        torch.testing.assert_close(result, torch.full((1, 3), value))


COPIES = ("copyNamedBuffersToDevice", "copyWeightsToDevice", "copyWeightsToHost")


@pytest.mark.parametrize("method", COPIES)
def test_nothing_is_copied_without_a_device_or_a_program(method):
    model = Shifted()
    made = options(updatableNamedBuffers=["first"], connectionType=poptorch.ConnectionType.Never)
    wrapped = poptorch.inferenceModel(model, made)
    if method != "copyNamedBuffersToDevice":
        with pytest.raises(poptorch.Error, match="has not been compiled"):
            getattr(wrapped, method)()
    wrapped.compile(torch.zeros(1, 3))
    with pytest.raises(AssertionError, match=f"{method} needs a device.*ConnectionType.Never"):
        getattr(wrapped, method)()
