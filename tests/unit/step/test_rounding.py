"""Stochastic rounding: exact where it can be, else one of two neighbours, right on average.

The statistical tests draw fixed random numbers, so they pass always or never. Their bound of five
standard errors is what one in a million correct implementations would miss.
"""

import pytest
import torch

from abele import StepConfig
from abele.step.reduction import stochastic_half, write_nearest, write_stochastic, writer
from helpers.models import plain_loss
from helpers.runs import AfterMicroSteps, rule_for, started

EVERY_HALF = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
DRAWS = 4000
STANDARD_ERRORS = 5.0


def of_all_magnitudes(count=1000):
    """Normal, subnormal and tiny values of both signs, float32."""
    exponent = torch.empty(count).uniform_(-9.0, 4.5)
    return torch.randn(count) * 10**exponent


def test_every_half_stays_what_it_is():
    rounded = stochastic_half(EVERY_HALF.float())
    torch.testing.assert_close(rounded, EVERY_HALF, rtol=0, atol=0, equal_nan=True)


def test_results_are_the_two_neighbours():
    x = of_all_magnitudes()
    rounded = stochastic_half(x.expand(50, -1).contiguous())
    nearest = x.half()
    other_side = torch.where(nearest.float() < x, torch.inf, -torch.inf).half()
    neighbour = torch.nextafter(nearest, other_side)
    assert ((rounded == nearest) | (rounded == neighbour)).all()


def test_the_mean_is_the_value():
    x = of_all_magnitudes()
    rounded = stochastic_half(x.expand(DRAWS, -1).contiguous()).double()
    low, high = rounded.min(0).values, rounded.max(0).values
    share = (x - low) / (high - low)
    error = (high - low) * (share * (1 - share) / DRAWS).sqrt()
    usable = (high > low) & (share > 0) & (share < 1)
    assert usable.sum() > 900
    z = ((rounded.mean(0) - x) / error)[usable]
    assert z.abs().max() < STANDARD_ERRORS
    assert z.std() == pytest.approx(1.0, abs=0.1)


def test_values_beyond_the_largest_half_round_to_nearest():
    x = torch.tensor([65504.0, 65519.0, 65520.0, 1e30, -65519.0, -1e30, torch.inf, -torch.inf])
    for _ in range(20):
        assert torch.equal(stochastic_half(x), x.half())
    assert stochastic_half(torch.tensor([torch.nan])).isnan().all()


def test_only_narrowing_to_half_is_random():
    x = torch.tensor([1.0001])
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        target = torch.zeros(1, dtype=kind)
        write_stochastic(target, x)
        assert torch.equal(target, x.to(kind))
    assert writer(stochastic=True) is write_stochastic
    assert writer(stochastic=False) is write_nearest


# -- in a program --------------------------------------------------------------------------


class Pulled(torch.nn.Module):
    """1000 half weights at 1; every update of ``lr`` 1 subtracts 1e-5, a fiftieth of a step."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1000).half())

    def forward(self, x):
        return plain_loss(self.weight * x)


def pulled(target="reference", *, stochastic=True, seed=5, steps=40, **config):
    """The weights after ``steps`` updates."""
    module, x = Pulled(), torch.full((1,), 1e-5)
    rule = rule_for(module, lr=1.0, momentum=0.0, settings={"loss_scaling": 1024.0})
    config = StepConfig(stochastic_rounding=stochastic, seed=seed, **config)
    session, _ = started(module, (x,), rule, config, target=target)
    for _ in range(steps):
        session.step([x.expand(config.micro_batches_per_update).contiguous().to(session.device)])
    return session.params["weight"].cpu()


def test_small_updates_arrive_on_average_and_are_lost_otherwise(target):
    assert torch.equal(pulled(stochastic=False), torch.ones(1000).half())
    result = pulled(target).double()
    # The gradient is rounded to half before it gets here; what is subtracted is that.
    drift = 40 * (torch.tensor(1e-5 * 1024).half().double() / 1024)
    step = 2.0**-11
    error = step * (40 * (1e-5 / step) / 1000) ** 0.5
    assert (result.mean() - (1 - drift)).abs() < STANDARD_ERRORS * error
    assert result.unique().numel() > 1


def test_the_stream_is_the_sessions_own():
    assert torch.equal(pulled(), pulled())
    assert not torch.equal(pulled(), pulled(seed=6))
    accumulated = {"gradient_accumulation": 2}
    assert torch.equal(pulled(**accumulated), pulled(**accumulated))
    state = torch.get_rng_state()
    pulled(**accumulated)
    assert torch.equal(torch.get_rng_state(), state)


def test_updates_differ_between_steps():
    moved = [pulled(steps=steps).float() for steps in (40, 80)]
    first, second = moved[0] - 1, moved[1] - moved[0]
    assert not torch.equal(first, second)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_half_state_is_rounded_too(kind):
    module, x = Pulled(), torch.full((1,), 1.0003)
    keys = {"sgd": ["momentum_buffer"], "adam": ["exp_avg", "exp_avg_sq"]}[kind]
    rule = rule_for(module, kind, settings={"state_dtypes": dict.fromkeys(keys, torch.float16)})
    session, _ = started(module, (x,), rule, StepConfig(stochastic_rounding=True, seed=1))
    for _ in range(3):
        session.step([x])
    for key in keys:
        state = session.optimizer_state[f"weight.{key}"]
        assert state.dtype is torch.float16
        assert state.unique().numel() > 1, "all elements have the same gradient"


def test_half_accumulators_are_rounded_too():
    module, x = Pulled(), torch.tensor([1.0, 2.0**-12])
    rule = rule_for(module, settings={"accumulator_dtype": torch.float16})
    config = StepConfig(stochastic_rounding=True, seed=1, gradient_accumulation=4)
    session, _ = started(module, (x[:1],), rule, config)
    sums = AfterMicroSteps(lambda: session.accumulators["accumulator.weight"].clone())
    session.add_observer(sums)
    session.step([torch.cat([x, x])])
    total = sums.values[1]
    assert set(total.unique().tolist()) == {1.0, 1 + 2.0**-10}
    assert (total > 1).float().mean() == pytest.approx(0.25, abs=STANDARD_ERRORS * 0.0137)
