"""Gradients of values that lie in memory in another order: the bits of plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele import _torch
from abele.trace.fake_results import _LIKE, actual
from helpers.runs import assert_same_bits, rule_for, run, run_eagerly, started

ORDERS = {"transposed": (0, 2, 1), "permuted": (2, 0, 1)}


def after(activation):
    return lambda values, y: F.l1_loss(activation(values), y)


LOSSES = {
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "mse_loss without mean": lambda values, y: F.mse_loss(values, y, reduction="sum"),
    "attention into mse_loss": lambda values, y: F.mse_loss(
        F.scaled_dot_product_attention(values, values, values), y
    ),
    "huber_loss": F.huber_loss,
    "elu": after(F.elu),
    "softplus": after(F.softplus),
    "hardtanh": after(F.hardtanh),
    "hardswish": after(F.hardswish),
    "hardsigmoid": after(F.hardsigmoid),
    "logsigmoid": after(F.logsigmoid),
    "gelu": after(F.gelu),
    "batch norm": after(lambda values: F.batch_norm(values, None, None, training=True)),
}


class Scored(nn.Module):
    def __init__(self, loss, order):
        super().__init__()
        self.fc, self.norm = nn.Linear(3, 6), nn.LayerNorm(6)
        self._loss, self._order = loss, order

    def forward(self, x, y):
        return self._loss(self.norm(self.fc(x)).permute(self._order), y)


def model(loss, order):
    torch.manual_seed(0)
    return Scored(loss, order)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_training_on_values_in_another_order(loss, order):
    x = torch.randn(2, 4, 3)
    y = torch.randn(2, 4, 6).permute(order).contiguous()
    module, plain = model(loss, order), model(loss, order)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    expected = run_eagerly(plain, optimizer, [(x, y)] * 2)
    session, _ = started(module, (x, y), rule_for(module, momentum=0.0))
    assert_same_bits(run(session, [(x, y)] * 2), expected)


def arguments(function):
    """Arguments of an operator: the first two tensors in different orders, numbers where needed."""
    tensors = [torch.rand(2, 6, 4), torch.rand(2, 4, 6).transpose(1, 2)]
    if "log_sigmoid" in str(function) or "batch_norm" in str(function):
        tensors.reverse()
    values = []
    for argument in function._schema.arguments:
        kind = str(argument.type)
        if "Optional" in kind:
            values.append(None)
        elif argument.name in ("running_mean", "running_var"):
            values.append(torch.ones(6))
        elif kind == "Tensor":
            values.append(tensors.pop(0) if tensors else torch.rand(2, 6, 4))
        else:
            values.append({"bool": False, "int": 1}.get(kind, 0.5))
    if "batch_norm" in str(function):
        values[-3] = True
    return values


@pytest.mark.parametrize("function", _LIKE, ids=str)
def test_results_are_laid_out_as_kernels_do_it(function):
    given = arguments(function)
    output = function(*given)
    with _torch.static_fakes() as mode:
        fakes = [mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in given]
        expected = actual(function, fakes, function(*fakes))
    count = len(_LIKE[function])
    for left, right in list(zip(as_list(output), as_list(expected), strict=True))[:count]:
        assert left.stride() == right.stride()


def as_list(value):
    return list(value) if isinstance(value, list | tuple) else [value]
