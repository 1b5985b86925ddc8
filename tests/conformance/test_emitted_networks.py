"""Emitted code of random networks, and of random views and writes, computes what is interpreted.

``ABELE_RANDOM_NETWORKS=2000`` tries that many instead of a few; ``--thorough`` does, too. What is
left to torch is printed, which ``-s`` shows.
"""

import collections
import copy
import os
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele import StepConfig
from abele.errors import CaptureError
from conftest import usable
from helpers import emitted_programs, random_programs, runs
from helpers.emitted_programs import Case

COUNT = int(os.environ.get("ABELE_RANDOM_NETWORKS", "0"))
FEW = 8
# Networks with a batch norm of images one pixel wide that lie in memory in another order than their
# gradients: torch's backward mixes up their rows. See the test of it below.
TORCH_IS_WRONG = (904,)
# Programs in one file: starting the compiler takes as long as compiling one of them.
TOGETHER = 40

pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


@pytest.fixture(autouse=True)
def _expected_warnings():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "forward changes a tensor in place")
        warnings.filterwarnings("ignore", "Training follows")
        warnings.filterwarnings("ignore", "Using a target size")
        warnings.filterwarnings("ignore", "An output with one or more elements was resized")
        yield


def of_views(seed: int) -> list[Case]:
    """A training step of views and writes, if autograd takes it."""
    module = random_programs.Model(random_programs.program(seed, 1 + seed % 24))
    batch = [each.clone() for each in random_programs.rows(1)]
    try:
        captured = runs.captured(module, batch, StepConfig(training=True), runs.rule_for(module))
    except (CaptureError, RuntimeError):
        return []
    generator = torch.Generator().manual_seed(seed)
    return [
        Case(
            f"views {seed}",
            program,
            [torch.rand(slot.shape, generator=generator).to(slot.dtype) for slot in program.inputs],
        )
        for program in captured.programs
    ]


def agree(cases: list[Case]) -> collections.Counter[str]:
    """Compare the cases with the interpreter; returns how often torch computes an operator."""
    left = collections.Counter()
    wrong = {}
    for outcome in emitted_programs.outcomes(cases):
        left.update(outcome.foreign())
        left["programs"] += 1
        left["programs with branches or effects"] += outcome.declined
        difference = outcome.difference()
        if difference is not None:
            wrong[outcome.name] = difference
    assert not wrong
    return left


def of_network(seed: int) -> list[Case]:
    return [] if seed in TORCH_IS_WRONG else emitted_programs.of_network(seed)


def test_torch_is_wrong_about_narrow_images():
    """Torch's own gradients depend on the order in memory; when this fails, try those networks."""
    generator = torch.Generator().manual_seed(0)
    grad, x = (torch.rand(4, 8, 9, 1, generator=generator) for _ in range(2))
    turned = torch.empty_strided(x.shape, (72, 1, 8, 72)).copy_(x)
    weight, mean, deviation = torch.ones(8), x.mean((0, 2, 3)), x.std((0, 2, 3))
    sums = [
        torch.ops.aten.native_batch_norm_backward(
            grad, each, weight, None, None, mean, 1 / deviation, True, 1e-5, [True] * 3
        )[2]
        for each in (x, turned)
    ]
    assert torch.allclose(sums[0], grad.sum((0, 2, 3)))
    assert not torch.allclose(sums[1], sums[0])


def tried(make, count: int) -> collections.Counter[str]:
    """Compare so many programs, and print what is left to torch."""
    left = collections.Counter()
    for first in range(0, count, TOGETHER):
        seeds = range(first, min(first + TOGETHER, count))
        left += agree([case for seed in seeds for case in make(seed)])
    for name, number in left.most_common():
        print(f"{number:6} {name}")
    return left


def test_networks_train_as_interpreted():
    left = tried(of_network, COUNT or FEW)
    assert left["programs"] >= FEW
    assert not left["programs with branches or effects"]


def test_images_that_lie_in_both_orders_train_as_interpreted():
    """Of one channel: in this network torch's result of a convolution has channels last."""
    assert agree(of_network(169))["programs"] == 1


def test_views_and_writes_train_as_interpreted():
    left = tried(of_views, COUNT or FEW)
    assert left["programs"] > FEW / 3


class Normed(nn.Module):
    """A classifier with a batch norm of short rows."""

    def __init__(self, width):
        super().__init__()
        layers = (nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))
        self.layers = nn.Sequential(*layers)

    def forward(self, x, labels):
        return F.cross_entropy(self.layers(x), labels)


@pytest.mark.parametrize("width", [3, 6, 11])  # lengths that g++ 11.3 and 12.2 got wrong
def test_a_batch_norm_of_short_rows_trains_as_plain_pytorch(width):
    module = Normed(width)
    plain, batches = copy.deepcopy(module), [(torch.randn(8, 6), torch.randint(0, 3, (8,)))]
    rule = runs.rule_for(module, lr=0.5)
    session, _ = runs.started(module, batches[0], rule, target=usable("cpu"))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    expected = runs.run_eagerly(plain, optimizer, batches)
    runs.assert_close_by_norm(runs.run(session, batches), expected, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("make", [of_network, of_views])
def test_many_programs_train_as_interpreted(make):
    tried(make, 2000)
