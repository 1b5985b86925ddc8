"""Modules whose capture needs care, trained against plain PyTorch on the reference target."""

import copy

import pytest
import torch
from torch import nn

import poptorch


def quiet() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    torch.manual_seed(0)


def trains_alike(model, plain, inputs, **tolerances):
    """Compare the losses of a few steps with those of plain PyTorch."""
    wrapped = poptorch.trainingModel(model, quiet(), torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        expected = plain(*inputs)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(wrapped(*inputs), expected.detach(), **tolerances)


class Masked(nn.Module):
    """A transformer of two layers whose mask comes from where a test says."""

    def __init__(self, kind):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.kind = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), kind
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        self.register_buffer("mask", mask if kind == "causal buffer" else mask.exp())

    def forward(self, x, y):
        made = nn.Transformer.generate_square_subsequent_mask(8)
        mask = made if self.kind == "made in forward" else self.mask
        return nn.functional.mse_loss(self.encoder(x.unsqueeze(0), mask)[0, :, :1], y)


@pytest.mark.parametrize("kind", ["causal buffer", "other buffer", "made in forward"])
def test_transformers_take_masks(kind):
    model = Masked(kind)
    inputs = torch.randn(8, 4), torch.randn(8, 1)
    trains_alike(model, copy.deepcopy(model), inputs, rtol=1e-6, atol=0)


class Sequences(nn.Module):
    """Loss of the outputs and last states of sequences of different lengths, packed or masked."""

    def __init__(self, layer, packed):
        super().__init__()
        self.layer, self.packed = layer(4, 5, batch_first=True), packed

    def forward(self, x, lengths):
        if self.packed:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            outputs, state = self.layer(packed)
            outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, True, total_length=x.shape[1])
            last = (state[0] if isinstance(state, tuple) else state)[0]
        else:
            outputs, _ = self.layer(x)
            last = outputs.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, 5))[:, 0]
            mask = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
            outputs = torch.where(mask.unsqueeze(2), outputs, 0.0)
        return nn.functional.mse_loss(outputs.sum(1) + last, torch.ones_like(last))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_padded_sequences_train_as_the_advice_for_packed_ones_says(layer):
    model = Sequences(layer, packed=False)
    plain = Sequences(layer, packed=True)
    plain.load_state_dict(model.state_dict())
    x, lengths = torch.randn(3, 6, 4), torch.tensor([2, 6, 3])
    trains_alike(model, plain, (x, lengths), rtol=1e-5, atol=1e-6)
    refused = poptorch.inferenceModel(Sequences(layer, packed=True), quiet())
    with pytest.raises(poptorch.Error, match=r"mask its output by torch\.where"):
        refused(x, lengths)
