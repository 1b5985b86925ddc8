"""Activations, weights and results of different types."""

import pytest
import torch
from torch import nn

import poptorch
from helpers.wrapping import options, rows, scorer, sgd, trainer, trains_like_eager


@pytest.mark.parametrize(
    ("kind", "result"),
    [(torch.float16, torch.float16), (torch.float64, torch.float32), (torch.bfloat16,) * 2],
    ids=str,
)
def test_a_model_may_be_of_any_floating_type(kind, result):
    model = scorer().to(kind)
    before = model.fc.weight.clone()
    loss, _ = trainer(model)(*(value.to(kind) for value in rows(4)))
    assert loss.dtype is result
    assert model.fc.weight.dtype is kind
    assert not torch.equal(model.fc.weight, before)


def test_float_weights_train_behind_half_activations():
    model = scorer()
    x, target = rows(4)
    trainer(model)(x.half(), target.half())
    assert model.fc.weight.dtype is torch.float32
    assert not torch.equal(model.fc.weight, scorer().fc.weight)


NORMS = {
    "layer": lambda: nn.LayerNorm(4),
    "group": lambda: nn.GroupNorm(1, 2),
    "instance": lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
    "batch": lambda: nn.BatchNorm1d(2),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("train", [True, False])
def test_float_inputs_work_with_half_normalisation(name, train):
    norm, plain = (NORMS[name]().train(train) for _ in range(2))
    x = torch.randn(3, 2, 4)
    output = poptorch.inferenceModel(norm.half(), options())(x)
    assert output.dtype is torch.float32
    torch.testing.assert_close(output, plain(x))


def test_half_statistics_are_updated_from_float_inputs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4).half()

        def forward(self, x):
            return poptorch.identity_loss(self.norm(x).pow(3).mean(), "none")

    model, plain, x = Model(), nn.BatchNorm1d(4), torch.randn(8, 4)
    trainer(model)(x)
    plain(x)
    assert model.norm.running_mean.dtype is torch.float16
    torch.testing.assert_close(model.norm.running_mean, plain.running_mean.half())
    torch.testing.assert_close(model.norm.running_var, plain.running_var.half())


@pytest.mark.parametrize("input_type", [torch.float16, torch.float32])
@pytest.mark.parametrize("weight_type", [torch.float16, torch.float32])
def test_attention_follows_its_activations(input_type, weight_type):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).to(weight_type)
    x = torch.randn(2, 3, 4).to(input_type)
    output = poptorch.inferenceModel(layer, options())(x)
    assert output.dtype is input_type
    torch.testing.assert_close(output, layer.to(input_type)(x), rtol=1e-2, atol=1e-2)


class Strided(nn.Module):
    """A reflect-padded, strided convolution and buffers, one of which follows its results."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 5, stride=2, padding=2, padding_mode="reflect")
        self.register_buffer("offset", torch.randn(8, 1))
        self.register_buffer("average", torch.zeros(8, 10))

    def forward(self, x):
        result = self.conv(x) + self.offset
        self.average.mul_(0.9).add_(result.detach().mean(0))
        return poptorch.identity_loss(result.square().mean(), "none"), result


def test_half_padding_strides_and_buffers_keep_the_bits_of_eager():
    torch.manual_seed(0)
    x = torch.randn(16, 4, 20).half()
    # A rate that half can hold: plain PyTorch rounds it to half before it multiplies.
    trains_like_eager(Strided().half(), [(x,)] * 3, lambda m: sgd(m, lr=0.125))
