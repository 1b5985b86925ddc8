"""Groups of convolutions: settings are checked, numbers are those of the convolutions alone."""

import pytest
import torch

import poptorch
from helpers.wrapping import options

IMAGES = torch.linspace(-1, 1, 2 * 2 * 5 * 5).reshape(2, 2, 5, 5)


class Convolutions(torch.nn.Module):
    def __init__(self, group, count=2):
        super().__init__()
        torch.manual_seed(0)
        self.group = group
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(2, 2, 3) for _ in range(count))

    def forward(self, x):
        with self.group:
            results = [layer(x) for layer in self.layers]
        return sum(results, torch.zeros_like(results[0]) if results else x)


def run(group, count=2):
    model = Convolutions(group, count)
    return poptorch.inferenceModel(model, options())(IMAGES), model(IMAGES)


class Configured(poptorch.MultiConv):
    """Settings made by a subclass, as programs do."""

    def __init__(self):
        super().__init__()
        self.availableMemoryProportions([0.8, 0.2]).partialsTypes([torch.float, torch.half])
        self.enableConvDithering([True, False]).planType(poptorch.MultiConvPlanType.Parallel)
        self.perConvReservedTiles(120).cycleBackOff(0.4)


@pytest.mark.parametrize("make", [poptorch.MultiConv, Configured])
def test_results_are_those_of_the_convolutions(make):
    device, host = run(make())
    assert torch.equal(device, host)


def test_it_trains():
    model = Convolutions(Configured())
    loss = torch.nn.Sequential(model, poptorch_loss())
    wrapped = poptorch.trainingModel(loss, options())
    before = model.layers[0].weight.detach().clone()
    wrapped(IMAGES)
    assert not torch.equal(model.layers[0].weight, before)


def poptorch_loss():
    class Loss(torch.nn.Module):
        def forward(self, x):
            return poptorch.identity_loss(x.square(), "mean")

    return Loss()


def test_one_group_can_be_entered_again():
    group = Configured()

    class Twice(Convolutions):
        def forward(self, x):
            return super().forward(x) + super().forward(x)

    model = Twice(group)
    assert torch.equal(poptorch.inferenceModel(model, options())(IMAGES), model(IMAGES))


def test_groups_do_not_nest():
    outer = poptorch.MultiConv()

    class Nested(Convolutions):
        def forward(self, x):
            with outer:
                return super().forward(x)

    model = Nested(poptorch.MultiConv())
    with pytest.raises(poptorch.Error, match=r"Nested poptorch\.MultiConv is not supported"):
        poptorch.inferenceModel(model, options())(IMAGES)
    assert model(IMAGES).shape == (2, 2, 3, 3)


def test_groups_are_not_empty():
    with pytest.raises(poptorch.Error, match=r"empty poptorch\.MultiConv"):
        run(poptorch.MultiConv(), count=0)


@pytest.mark.parametrize(
    ("setter", "value"),
    [
        ("availableMemoryProportions", [0.1, 0.2, 0.3]),
        ("partialsTypes", (torch.float,)),
        ("enableConvDithering", [True] * 4),
    ],
)
def test_lists_hold_one_value_for_each(setter, value):
    group = getattr(poptorch.MultiConv(), setter)(value)
    message = f"MultiConv.{setter}: there are 2 convolutions inside and {len(value)} values"
    with pytest.raises(poptorch.Error, match=message):
        run(group)
    device, host = run(getattr(group, setter)(None))
    assert torch.equal(device, host)
