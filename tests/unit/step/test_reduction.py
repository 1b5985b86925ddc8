"""Where a mean divides: the same update in exact arithmetic, another range in half."""

import pytest
import torch

from abele import Reduction, StepConfig
from abele.step.config import MeanStrategy
from abele.step.reduction import loss_divisor, reduced
from helpers.models import plain_loss
from helpers.runs import AfterMicroSteps, rule_for, started

STRATEGIES = list(MeanStrategy)


class Gradient(torch.nn.Module):
    """The gradient of the one weight is the mean of the input."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return plain_loss(self.weight * x, "mean")


def session_of(strategy, accumulator=torch.float32, target="reference", **config):
    module = Gradient()
    settings = {"accumulator_dtype": accumulator}
    rule = rule_for(module, lr=1.0, momentum=0.0, settings=settings)
    config = StepConfig(mean_strategy=strategy, **config)
    return started(module, (torch.ones(1),), rule, config, target=target)[0]


def moved(strategy, grads, *args, **config):
    """By how much the weight sinks in one call."""
    session = session_of(strategy, *args, **config)
    session.step([torch.tensor(grads, device=session.device)])
    return -session.params["weight"].item()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("accumulation", "replicas"), [(1, 1), (4, 1), (1, 4), (2, 2)])
def test_every_strategy_gives_the_mean(strategy, accumulation, replicas):
    grads = [1.0, 2.0, 4.0, 9.0][: accumulation * replicas]
    gradients = moved(strategy, grads, gradient_accumulation=accumulation, replicas=replicas)
    assert gradients == pytest.approx(sum(grads) / len(grads), rel=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sum_is_none_of_their_business(strategy):
    config = {"gradient_accumulation": 2, "replicas": 2, "reduction": Reduction.SUM}
    assert moved(strategy, [1.0, 2.0, 4.0, 9.0], **config) == 16.0


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_half_sums_overflow_and_half_means_do_not(strategy, target):
    grads = [30000.0, 40000.0, 20000.0, 10000.0]
    gradients = moved(strategy, grads, torch.float16, target, gradient_accumulation=4)
    if strategy is MeanStrategy.RUNNING:
        assert gradients == pytest.approx(25000.0, rel=1e-3)
    else:
        assert gradients == float("inf")


def test_dividing_the_loss_by_replicas_keeps_their_sum_in_range():
    grads = [40000.0, 40000.0]
    gradients = [moved(strategy, grads, torch.float16, replicas=2) for strategy in STRATEGIES]
    expected = dict.fromkeys(STRATEGIES, 40000.0) | {MeanStrategy.POST: float("inf")}
    assert dict(zip(STRATEGIES, gradients, strict=True)) == expected


def test_the_accumulator_holds_the_mean_so_far():
    session = session_of(MeanStrategy.RUNNING, gradient_accumulation=4)
    means = AfterMicroSteps(lambda: session.accumulators["accumulator.weight"].item())
    session.add_observer(means)
    session.step([torch.tensor([1.0, 2.0, 6.0, 7.0])])
    assert means.values[:3] == pytest.approx([1.0, 1.5, 3.0])


def test_every_update_starts_counting_anew():
    session = session_of(MeanStrategy.RUNNING, gradient_accumulation=2, device_iterations=2)
    session.step([torch.tensor([1.0, 3.0, 10.0, 20.0])])
    session.step([torch.tensor([0.0, 2.0, 5.0, 5.0])])
    assert session.params["weight"].item() == pytest.approx(-(2.0 + 15.0 + 1.0 + 5.0))
    assert session.counters["micro_batches"].item() == 0


def test_the_applied_gradient_is_never_the_accumulator():
    total = torch.ones(2)
    for strategy in STRATEGIES:
        assert reduced(total, StepConfig(mean_strategy=strategy)) is not total


def test_processes_count_as_replicas():
    config = StepConfig(mean_strategy=MeanStrategy.POST_AND_LOSS, replicas=2, processes=3)
    assert loss_divisor(config) == 6
    assert loss_divisor(StepConfig(replicas=2)) == 1
