"""Loops, branches, slices and CTC on every target, against the same functions on the host."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import inference, sgd, trainer

X = torch.arange(30.0).reshape(6, 5) / 10
FACTOR = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6])


def flow(x, n):
    def branch(a):
        return poptorch.cond(a.sum() > 3, lambda b: b - 1, [a], lambda b: b + FACTOR[:1], [a])

    results = poptorch.for_loop(1000, lambda a, b: [torch.tanh(a * FACTOR), b + 1], [x, n])
    results += poptorch.for_loop(3, lambda a, b: [b, a.add_(1)], [x, x + 1])
    results += poptorch.for_loop(0, lambda a: [a + 1], [x])
    results += poptorch.for_loop(4, branch, [x])
    results += poptorch.cond(x.sum() > 100, lambda a: a, [x], lambda a: a, [x + 1])
    results += poptorch.cond(n > 1, lambda a: a.t() @ a, [x], lambda: (x * FACTOR).t() @ x, [])
    return results


def slices(x, n):
    return [
        poptorch.dynamic_slice(x, 0, n, 3, 2),
        poptorch.dynamic_slice(x, 1, n + 100, 3, 1),
        poptorch.dynamic_update(x, x[:2] * 2, 0, n.to(torch.int16), 2),
        x[:, n : n + 2],
        x[n],
    ]


def decoder(x, n):
    log_probs = x.log_softmax(-1).unsqueeze(1)
    return poptorch.ctc_beam_search_decoder(log_probs, n.reshape(1) + 3, 0, 10, 2)


def clouds(x, n):
    chosen = poptorch.fps(x, [0, 2, 6], 0.5)
    return [chosen, poptorch.nearest(x, x[:3] + n, [0, 0, 0, 1, 1, 1], [0, 1, 1])]


def everything(x, n, rows):
    """All of them in one program, which is compiled in the time of one, and a walk over rows."""
    results = [*flow(x, n), *slices(x, n), *decoder(x, n), *clouds(x, n)]
    walk = [rows, x[:3]]
    return results + poptorch.for_loop(3, lambda i, a: [i + 1, a + F.embedding(i, x)], walk)


@pytest.fixture
def _on(target, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", target.name)


def agree(function, wrapped, *more):
    for scale, count in ((1.0, 2), (-1.0, 1)):
        inputs = X * scale, torch.tensor(count, dtype=torch.int32), *more
        expected, output = function(*inputs), wrapped(*inputs)
        assert len(expected) == len(output)
        for one, other in zip(output, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, check_dtype=False)


@pytest.mark.usefixtures("_on")
def test_everything_computes_what_the_host_does_and_a_wrong_index_ends_the_call_alone(target):
    wrapped, rows = inference(everything), torch.tensor([0, 1, 2])
    agree(everything, wrapped, rows)
    if target.name != "cuda":
        with pytest.raises(IndexError, match="index out of range"):
            wrapped(X, torch.tensor(2, dtype=torch.int32), torch.tensor([0, 4, 2]))
        agree(everything, wrapped, rows)


class Speech(nn.Module):
    """Log probabilities by a dense layer, with the CTC loss."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 5)

    def forward(self, x, targets, input_lengths, target_lengths):
        log_probs = self.fc(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths)


@pytest.mark.usefixtures("_on")
def test_the_ctc_loss_trains_like_plain_pytorch():
    model = Speech()
    plain = copy.deepcopy(model)
    optimizer, wrapped = sgd(plain), trainer(model)
    batch = torch.randn(2, 7, 5), torch.tensor([[1, 2, 2], [3, 4, 1]])
    lengths = torch.tensor([7, 6]), torch.tensor([3, 2])
    for _ in range(3):
        output = wrapped(*batch, *lengths)
        optimizer.zero_grad()
        expected = plain(*batch, *lengths)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(output, expected.detach(), rtol=1e-5, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(model.fc.weight, plain.fc.weight, rtol=1e-5, atol=1e-6)
