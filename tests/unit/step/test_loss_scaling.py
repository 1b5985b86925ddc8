"""A loss scale that the device adapts: when it moves, what it counts, what it takes back."""

import dataclasses

import pytest
import torch

from abele import StepConfig
from abele.step.loss_scaling import AutomaticScaling, count_saturated, elements, limit
from helpers.models import plain_loss
from helpers.runs import rule_for, started

EVERY = AutomaticScaling()


class Gradient(torch.nn.Module):
    """The gradient of each of 8 half weights is the input, times the scale."""

    def __init__(self, kind=torch.float16):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8, dtype=kind))

    def forward(self, x):
        return plain_loss(self.weight * x)


def session_of(scale, settings=EVERY, *, target="reference", module=None, kind="sgd", **config):
    module = module or Gradient()
    rule = rule_for(module, kind, **({"lr": 1.0, "momentum": 0.0} if kind == "sgd" else {}))
    rule = dataclasses.replace(
        rule, loss_scaling=scale, loss_scaling_variable=True, automatic_scaling=settings
    )
    return started(module, (torch.ones(1),), rule, StepConfig(**config), target=target)[0]


def scales(session, grads):
    """The scale after each call with such a gradient per micro-batch."""
    count = session.config.micro_batches_per_update
    results = []
    for grad in grads:
        session.step([torch.full((count,), grad, device=session.device)])
        results.append(session.hyper["loss_scaling"].item())
    return results


@pytest.mark.thorough  # compiled; test_half always compiles a scale that adapts
def test_the_scale_doubles_until_gradients_come_near_the_largest_half(target):
    # The edge lies at 65504 / 8 = 8188: 4 * 2048 is above, 4 * 1024 below.
    session = session_of(256.0, target=target)
    assert scales(session, [4.0] * 6) == [512.0, 1024.0, 2048.0, 1024.0, 2048.0, 1024.0]


@pytest.mark.thorough  # as above
def test_training_recovers_from_a_scale_that_overflows(target):
    session = session_of(2.0**20, target=target)
    assert scales(session, [1.0] * 4) == [2.0**19, 2.0**18, 2.0**17, 2.0**16]
    assert torch.equal(session.params["weight"].cpu(), torch.zeros(8).half()), "left out"
    assert scales(session, [1.0] * 4) == [2.0**15, 2.0**14, 2.0**13, 2.0**12]
    # The largest half is 65504: 2^16 was left out, 2^15 and those after were applied.
    assert torch.equal(session.params["weight"].cpu(), torch.full((8,), -3.0).half())


def test_state_of_an_update_that_was_left_out_is_untouched():
    session = session_of(2.0**17, kind="adam")
    scales(session, [1.0])
    assert all(not value.any() for value in session.optimizer_state.values())
    session.hyper["loss_scaling"].fill_(1.0)
    scales(session, [1.0])
    assert all(value.any() for value in session.optimizer_state.values())


def test_a_period_of_several_updates():
    session = session_of(1.0, AutomaticScaling(period=3))
    assert scales(session, [1.0] * 6) == [1.0, 1.0, 2.0, 2.0, 2.0, 4.0]
    # One saturated update in a period is enough at the default threshold.
    assert scales(session, [1.0, 60000.0 / 4, 1.0]) == [4.0, 4.0, 2.0]


def test_the_threshold_is_a_proportion_of_all_elements_of_the_period():
    half = AutomaticScaling(threshold=0.5)
    session = session_of(1.0, half, gradient_accumulation=2)
    session.step([torch.tensor([1.0, 10000.0])])
    assert session.hyper["loss_scaling"].item() == 2.0, "exactly half is not above"
    session.step([torch.tensor([10000.0, 10000.0])])
    assert session.hyper["loss_scaling"].item() == 1.0
    assert {name: value.item() for name, value in session.counters.items()} == {
        "saturated_gradients": 0.0,
        "scaled_updates": 0.0,
    }


def test_the_bin_edge_is_a_share_of_the_largest_half():
    session = session_of(1.0, AutomaticScaling(bin_edge=0.5))
    assert scales(session, [30000.0]) == [2.0]
    session = session_of(1.0, AutomaticScaling(bin_edge=0.4))
    assert scales(session, [30000.0]) == [0.5]


def test_without_half_gradients_the_scale_stays():
    session = session_of(64.0, module=Gradient(torch.float32))
    assert scales(session, [1.0, 1e6]) == [64.0, 64.0]


def test_the_scale_has_limits():
    assert limit(torch.zeros((), dtype=torch.float16)) == 2.0**15
    session = session_of(2.0**23)
    assert scales(session, [0.0] * 3) == [2.0**24] * 3


def test_what_counts_as_saturated():
    counter = torch.zeros((), dtype=torch.float64)
    grads = [
        torch.tensor([8188.0, 8192.0, -9000.0, torch.inf, torch.nan]).half(),
        torch.tensor([1e30]),
        torch.zeros(3).half(),
    ]
    count_saturated(grads, counter, EVERY)
    assert counter.item() == 4
    assert elements(grads) == 8


@pytest.mark.parametrize("wrong", [{"bin_edge": 0.0}, {"threshold": 2.0}, {"period": 0}], ids=str)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="Automatic loss scaling needs"):
        AutomaticScaling(**wrong)
