"""Views that forward gives another shape in place, and writes into their memory."""

import pytest
import torch
from torch import nn

from abele.capture.losses import mark_loss
from abele.errors import CaptureError
from helpers.runs import assert_same_bits, captured, rule_for, run, run_eagerly, started

FACTORS = torch.arange(9.0).view(3, 3)
X = torch.rand(3, 3)


class Made(nn.Module):
    """Has a test do something to a product, and trains its sum."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self._change = nn.Parameter(torch.rand(3, 3)), change
        self.register_buffer("mean", torch.rand(3, 3))

    def forward(self, x):
        loss = self._change(self, x * self.weight).sum()
        mark_loss(loss)
        return loss


def written_through(model, y):
    view = y[:3]
    view.t_()
    view.mul_(FACTORS)
    return y * view


def written_below(model, y):
    view = y[:3]
    view.transpose_(0, 1)
    y.mul_(FACTORS)
    return view * FACTORS


def dropped(model, y):
    y[:1].squeeze_().mul_(2)
    return y


def of_a_buffer(model, y):
    view = model.mean.view(3, 3)
    view.t_()
    view.add_(y * FACTORS)
    return view * FACTORS


def turned_back(model, y):
    view = y[:3]
    view.t_()
    view.mul_(FACTORS)
    view.t_()
    return y * view


REFUSED = [written_through, written_below, dropped, of_a_buffer, turned_back]


@pytest.mark.parametrize("change", REFUSED)
def test_a_write_after_the_change_is_refused(change):
    module = Made(change)
    line = r"changes the shape of a view in place at \S+test_reshaped_views.py:\d+: `.*_\("
    with pytest.raises(CaptureError, match=rf"{line}.*view = view\.transpose\("):
        captured(module, (X,), None, rule_for(module))


def only_read(model, y):
    view = y[:2]
    view.swapaxes_(0, 1).unsqueeze_(0)
    return (view.squeeze_() * FACTORS[:, :2]).sum() * y


def written_before(model, y):
    view = y[:3]
    y.mul_(FACTORS)
    view.t_()
    return view * FACTORS


def no_view(model, y):
    y.t_()
    y.mul_(FACTORS)
    return y * FACTORS


def without_gradient(model, y):
    view = model.mean.view(3, 3)
    view.t_()
    view.mul_(FACTORS)
    return view * y


def two_views(model, y):
    first, second = y[:2], y[1:]
    first.t_()
    second.t_()
    return y * FACTORS


TRAINED = [only_read, written_before, no_view, without_gradient, two_views]


@pytest.mark.parametrize("change", TRAINED)
def test_what_is_not_written_later_trains_as_in_plain_pytorch(change):
    module, plain = Made(change), Made(change)
    expected = run_eagerly(plain, torch.optim.SGD(plain.parameters(), lr=0.05), [(X,)] * 2)
    session, _ = started(module, (X,), rule_for(module, momentum=0.0))
    assert_same_bits(run(session, [(X,)] * 2), expected)


def test_inference_writes_through_such_views():
    module = Made(written_through)
    expected = module(X).detach()
    session, _ = started(module, (X,))
    assert torch.equal(session.step([X])[0], expected)
