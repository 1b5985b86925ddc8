"""Random networks of batch norms, whose sums and loops run together, compute what is interpreted.

The limits below which nothing is joined are lowered, so that images are small.
``ABELE_RANDOM_NETWORKS=500`` tries that many networks instead of a few.
"""

import os
import random

import pytest
import torch
from torch import nn

from abele.targets.cpu.emitted import channel_blocking
from helpers import emitted_programs, random_networks, runs
from helpers.emitted_programs import Case

COUNT = int(os.environ.get("ABELE_RANDOM_NETWORKS", "6"))
TOGETHER = 6  # programs in one file

pytestmark = pytest.mark.compiler

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.Sigmoid, nn.ELU, nn.Identity)


class Block(nn.Module):
    """A convolution, a norm and an activation, and what networks do with the result."""

    def __init__(self, choose: random.Random, channels: int, more: int):
        super().__init__()
        kind = choose.choice(["1x1", "3x3", "depthwise"])
        if kind == "depthwise":
            more = channels
        size = 1 if kind == "1x1" else 3
        groups = channels if kind == "depthwise" else 1
        stride = choose.choice([1, 1, 2])
        self.conv = nn.Conv2d(channels, more, size, stride, size // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(more, affine=choose.random() < 0.8)
        self.activation = choose.choice(ACTIVATIONS)()
        self.gate = nn.Conv2d(more, more, 1) if choose.random() < 0.3 else None
        self.adds = stride == 1 and more == channels and choose.random() < 0.6
        self.joins = stride == 1 and choose.random() < 0.2
        self.before = choose.random() < 0.4
        self.channels = more + channels * self.joins
        self.text = f"{kind}/{stride} {type(self.activation).__name__}"

    def forward(self, x):
        y = self.norm(self.conv(x))
        y = self.activation(y + x) if self.adds and self.before else self.activation(y)
        if self.gate is not None:
            y = y * self.gate(y.mean((2, 3), keepdim=True)).sigmoid()
        if self.adds and not self.before:
            y = y + x
        return torch.cat((y, x), 1) if self.joins else y


class Network(nn.Module):
    def __init__(self, choose: random.Random):
        super().__init__()
        channels, blocks = choose.choice([2, 3, 8]), []
        self.takes = channels
        for _ in range(choose.randint(2, 4)):
            blocks.append(Block(choose, channels, choose.choice([4, 8, 9, channels])))
            channels = blocks[-1].channels
        self.blocks, self.last = nn.Sequential(*blocks), nn.Linear(channels, 5)

    def forward(self, x, target):
        scores = self.last(self.blocks(x).mean((2, 3)))
        return scores, nn.functional.cross_entropy(scores, target)


def of_network(seed: int) -> list[Case]:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    module = Network(choose).train()
    samples = choose.choice([1, 2, 5])
    size = 20 if samples == 1 else choose.choice([7, 12, 17])  # several pixels have to be left
    batch = [torch.randn(samples, module.takes, size, size + 1), torch.randint(0, 5, (samples,))]
    rule = choose.choice(["sgd", "adam"])
    layers = [block.text for block in module.blocks]
    made = random_networks.Network(module, batch, rule, layers)
    programs = runs.captured(module, batch, rule=runs.rule_for(module, rule)).programs
    name = f"network {seed} ({samples} of {size}: {', '.join(layers)}; {rule})"
    return [Case(name, each, emitted_programs._state(each, made, seed)) for each in programs]


@pytest.fixture
def _small_images_are_worth_it(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    for limit, least in (("BYTES", 0), ("CHANNELS", 2), ("PIXELS", 4)):
        monkeypatch.setattr(channel_blocking, f"_LEAST_{limit}", least)


@pytest.mark.usefixtures("_small_images_are_worth_it")
@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
def test_networks_of_joined_norms_train_as_interpreted(first):
    cases = [each for seed in range(first, first + TOGETHER) for each in of_network(seed)]
    wrong, joined = {}, 0
    for outcome in emitted_programs.outcomes(cases, threads=3):
        joined += "abele_channel_gradients(begin" in outcome.plan.source.text
        difference = outcome.difference()
        if difference is not None:
            wrong[outcome.name] = difference
    assert not wrong
    assert joined > TOGETHER / 2
