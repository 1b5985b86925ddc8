"""Behaviours that the original's own tests pin: inputs, buffers, losses.

Each runs through the public interface only.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import Calls, inference, options, plain_steps, rows, sgd, trainer
from poptorch import OutputMode

# --- inputs and buffers


def test_keys_of_a_dictionary_come_in_any_order_and_are_named_when_they_differ():
    values = {"a": torch.ones(2), "b": torch.full((2,), 2.0), "c": torch.full((2,), 4.0)}
    wrapped = inference(lambda d: d["a"] + 10 * d["b"] + 100 * d["c"])
    for order in itertools.permutations(values):
        assert wrapped({key: values[key] for key in order}).tolist() == [421.0, 421.0]
    with pytest.raises(poptorch.Error, match="Missing arguments: c"):
        wrapped({key: values[key] for key in "ab"})
    with pytest.raises(poptorch.Error, match="Unexpected arguments: d"):
        wrapped(values | {"d": values["a"]})
    with pytest.raises(poptorch.Error, match="Keys mismatch"):
        wrapped({key: values[key] for key in "ab"} | {"d": values["a"]})


class Everything(nn.Module):
    def forward(self, x, y, *more, scale=2.0, shift=None, **named):
        total = x * scale + y
        for extra in (*more, *(() if shift is None else (shift,)), *named.values()):
            total = total + extra
        return total


X = torch.arange(4.0)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, X), {}),
        ((X,), {"y": X}),
        ((), {"y": X, "x": 2 * X}),
        ((X, X), {"scale": 3.0}),
        ((X, X), {"shift": X}),
        ((X, X, X, X), {}),
        ((X, X), {"other": X, "another": 2 * X}),
        ((X, X, X), {"other": X, "shift": X, "scale": 1}),
    ],
    ids=["defaults", "one key", "keys", "constant", "None", "*args", "**kwargs", "all"],
)
def test_arguments_are_taken_as_python_takes_them(args, kwargs):
    model = Everything()
    wrapped = poptorch.inferenceModel(model, options())
    for _ in range(2):
        assert torch.equal(wrapped(*args, **kwargs), model(*args, **kwargs))


@pytest.mark.parametrize("by_key", [True, False])
def test_another_python_number_is_a_value_mismatch(by_key):
    wrapped = inference(lambda x, scale: x * scale)
    call = (lambda n: wrapped(X, scale=n)) if by_key else (lambda n: wrapped(X, n))
    assert torch.equal(call(2.0), 2 * X)
    with pytest.raises(poptorch.Error, match=r"Value mismatch for .*2\.0.*3\.0.*destroy\(\)"):
        call(3.0)
    assert torch.equal(call(2.0), 2 * X)


def test_non_contiguous_inputs_compute_alike_and_warn_once(caplog):
    wrapped = inference(lambda x, y: x.cumsum(0) * 2 + y)
    wide = torch.randn(4, 8)
    for x in (wide.t(), wide.t().contiguous(), torch.randn(16, 4)[::2], wide.t()):
        expected = x.contiguous().cumsum(0) * 2 + x
        torch.testing.assert_close(wrapped(x, x), expected, rtol=0, atol=0)
    assert caplog.text.count("non-contiguous") == 1


@pytest.mark.parametrize("iterations", [1, 2])
def test_adding_to_an_input_in_place_changes_the_callers_tensor(iterations):
    def forward(x, nested):
        x += 1
        nested[0].mul_(3)
        return x + nested[0]

    wrapped = inference(forward, deviceIterations=iterations)
    for _ in range(2):
        x, y = torch.ones(4), torch.full((4,), 2.0)
        assert wrapped(x, [y]).tolist() == [8.0] * 4
        assert (x.tolist(), y.tolist()) == ([2.0] * 4, [6.0] * 4)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return self.count, poptorch.identity_loss((x * self.weight).square(), "mean")


@pytest.mark.parametrize(
    ("iterations", "accumulation"), [(1, 1), (3, 1), (1, 4), (3, 4)], ids=["1", "D", "GA", "both"]
)
def test_a_counter_increases_once_per_micro_batch(iterations, accumulation):
    model, per_call = Counter(), iterations * accumulation
    wrapped = trainer(
        model,
        deviceIterations=iterations,
        gradientAccumulation=accumulation,
        outputMode=OutputMode.All,
    )
    for call in (0, 1, 2):
        seen, _ = wrapped(torch.randn(2 * per_call, 3))
        first = call * per_call + 1
        assert seen.tolist() == [float(i) for i in range(first, first + per_call)]
        assert model.count.item() == (call + 1) * per_call


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x, target):
        scores = self.fc(self.norm(x))
        return F.mse_loss(scores, target), scores


@pytest.mark.parametrize(
    ("iterations", "accumulation"), [(4, 1), (1, 4), (2, 2)], ids=["D", "GA", "both"]
)
def test_batch_norm_updates_its_statistics_per_micro_batch(iterations, accumulation):
    model, plain, (x, target) = Normalised(), Normalised(), rows(12)
    settings = {"deviceIterations": iterations, "gradientAccumulation": accumulation}
    trainer(model, **settings)(x, target)
    micro = list(zip(x.split(3), target.split(3), strict=True))
    updates = [micro[i : i + accumulation] for i in range(0, 4, accumulation)]
    plain_steps(plain, sgd(plain), updates)
    assert model.norm.num_batches_tracked.item() == 4
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    assert not torch.allclose(model.norm.running_mean, 0.1 * x.mean(0))  # not of all rows


# --- losses


@pytest.mark.parametrize(("reduction", "gradient"), [("none", 1.0), ("sum", 1.0), ("mean", 1 / 12)])
def test_identity_loss_seeds_ones_ones_and_one_over_n(reduction, gradient):
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(4, 3))
    model.forward = lambda x: poptorch.identity_loss(model.weight * x, reduction)
    x = torch.randn(4, 3)
    loss = poptorch.trainingModel(model, options(), sgd(model, 1.0))(x)
    assert loss.shape == ((4, 3) if reduction == "none" else ())
    torch.testing.assert_close(model.weight.detach(), -gradient * x)
    host = poptorch.identity_loss(x, reduction)
    assert torch.equal(host, x if reduction == "none" else getattr(x, reduction)())


def _losses(model, x):
    """Two losses of the same value."""
    return F.mse_loss(x * model.weight, x), F.l1_loss(x * model.weight, x)


def test_two_separate_losses_are_refused_and_none_too():
    refused = pytest.raises(poptorch.Error, match="Multiple independent losses found in graph")
    with refused:
        trainer(Calls(_losses))(X)
    with refused:  # also when only one of them is returned, or their plain sum
        trainer(Calls(lambda self, x: _losses(self, x)[0]))(X)
    with refused:
        trainer(Calls(lambda self, x: sum(_losses(self, x))))(X)
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        trainer(Calls(lambda self, x: (x * self.weight).sum()))(X)


def _by_autograd(function):
    model = Calls(function)
    output = model(X)
    loss = output if isinstance(output, torch.Tensor) else output[len(output) // 2]
    loss.sum().backward()
    return 2.0 - 0.1 * model.weight.grad


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: poptorch.identity_loss(sum(_losses(self, x)), "none"),
        lambda self, x: poptorch.identity_loss(
            poptorch.identity_loss(x * self.weight, "mean") ** 2, "sum"
        ),
        lambda self, x: (x + self.weight, F.mse_loss(x * self.weight, x), x * 3),
    ],
    ids=["a sum of two", "nested", "between outputs"],
)
def test_a_nested_loss_and_one_between_other_outputs_train(forward):
    model = Calls(forward)
    output = trainer(model)(X)
    expected = Calls(forward)(X)
    torch.testing.assert_close(output, expected, check_dtype=True)
    torch.testing.assert_close(model.weight.detach(), _by_autograd(forward))
