"""Parameters of no dimension to five, without elements and with one, under every optimizer."""

import pytest
import torch

import poptorch
from helpers.wrapping import trainer
from poptorch import optim

SHAPES = [(), (1,), (0,), (2, 0), (2, 1, 3), (2, 1, 1, 2), (1, 2, 2, 1, 2)]
FURTHER = ("Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")
KINDS = [
    (package, name)
    for package in (torch.optim, optim)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "LAMB", *FURTHER)
    if hasattr(package, name)
]
STEPS = 2


class Shaped(torch.nn.Module):
    """A parameter of each shape, and a loss that gives each a gradient of its own."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(shape, generator=generator) for shape in SHAPES]
        self.values = torch.nn.ParameterList(map(torch.nn.Parameter, made))

    def forward(self, x):
        parts = [(value.sin() * x.mean() * (i + 1)).sum() for i, value in enumerate(self.values)]
        return poptorch.identity_loss(torch.stack(parts).sum(), "none")


def batch(step):
    return torch.full((4, 2), 0.5 + step)


def settings(package, name):
    """Values that are changed from their defaults, so that all of them are variable."""
    made = {"lr": 0.1} if name == "Rprop" else {"lr": 0.1, "weight_decay": 0.05}
    if name in ("SGD", "RMSprop"):
        made["momentum"] = 0.9
    if name in ("Adam", "AdamW", "LAMB") and package is optim:
        made |= {"betas": (0.5, 0.75), "eps": 1e-6}
    if package is optim:
        made["loss_scaling"] = 64.0  # a power of two changes no bit
    return made


def compiled(package, name):
    model = Shaped()
    optimizer = getattr(package, name)(model.parameters(), **settings(package, name))
    wrapped = trainer(model, optimizer)
    for step in range(STEPS):
        wrapped(batch(step))
    return model


def plain(package, name):
    model = Shaped()
    values = {k: v for k, v in settings(package, name).items() if k != "loss_scaling"}
    kind = optim.LAMB if name == "LAMB" else getattr(torch.optim, name)
    optimizer = kind(model.parameters(), **values)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).backward()
        optimizer.step()
    return model


def assert_same(actual, expected, **tolerance):
    for shape, left, right in zip(SHAPES, actual.values, expected.values, strict=True):
        assert left.shape == right.shape == shape
        torch.testing.assert_close(left, right, **tolerance)


@pytest.mark.parametrize(
    ("package", "name"), KINDS, ids=lambda each: getattr(each, "__name__", each)
)
def test_a_parameter_of_any_shape_is_torchs(package, name):
    assert_same(compiled(package, name), plain(package, name), rtol=0, atol=0)


def test_and_with_accumulated_and_clipped_gradients():
    def trained(count):
        model = Shaped()
        optimizer = optim.AdamW(model.parameters(), lr=0.1, betas=(0.5, 0.75), max_grad_norm=0.5)
        chosen = poptorch.MeanReductionStrategy.Running
        name = "setMeanAccumulationAndReplicationReductionStrategy"
        wrapped = trainer(model, optimizer, gradientAccumulation=count, **{name: chosen})
        for step in range(STEPS):
            wrapped(batch(step))
        return model

    assert_same(trained(2), trained(1))


def test_and_in_half():
    model, name = Shaped().half(), "LAMB"
    optimizer = optim.LAMB(model.parameters(), **settings(optim, name))
    wrapped = trainer(model, optimizer)
    for step in range(STEPS):
        wrapped(batch(step).half())
    assert_same(model.float(), plain(optim, name), rtol=0.02, atol=0.02)
