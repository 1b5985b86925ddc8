"""Replicas spread over instances make the updates that they make in one process."""

from pathlib import Path

import pytest
import torch

import poptorch
from helpers import instances, training_cases
from helpers.training_cases import CASES, REPLICAS

PROGRAM = Path(training_cases.__file__)
NORMALISED = "batch norm, dropout, mean by loss"
SCALED = "half, automatic scaling"
# Its true gradient is zero, so that all it gets is rounding.
NOISE = "first.bias"


# More starts of processes than every run of the tests should pay for.
RARE = ["plain torch sgd, sum", "lamb, running mean", "half, stochastic rounding"]
USUAL = [name for name in CASES if name not in RARE]


def rare(*values):
    return pytest.param(*values, marks=pytest.mark.long)


NAMES = [*USUAL, *map(rare, RARE)]
SPREADS = [(name, 2) for name in USUAL] + [rare(name, 2) for name in RARE]
SPREADS += [rare(name, 4) for name in CASES]


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """What every instance found, by case and number of instances; few starts serve all cases."""
    results = {}

    def start(names, count):
        folder = tmp_path_factory.mktemp(f"of {count}")
        instances.run(PROGRAM, [str(folder), *names], count, replicas=REPLICAS // count)
        kept = [torch.load(folder / f"{i}.pt", weights_only=True) for i in range(count)]
        results.update({(name, count): [one[name] for one in kept] for name in names})

    def of(name, count=2):
        if (name, count) not in results:
            start(USUAL if name in USUAL else RARE, count)
        return results[name, count]

    return of


@pytest.fixture(scope="module")
def alone():
    """The same trainings in one process with all replicas, made when they are asked for."""
    made = {}

    def train(name):
        if name not in made:
            options = poptorch.Options().replicationFactor(REPLICAS)
            made[name] = training_cases.train(CASES[name], options, 0, REPLICAS)
        return made[name]

    return train


def distance(actual, expected):
    """The largest difference, relative to the largest expected value."""
    gap = (actual.double() - expected.double()).abs().max()
    return (gap / expected.double().abs().max().clamp_min(1e-30)).item()


@pytest.mark.parametrize(("name", "count"), SPREADS)
def test_weights_are_those_of_one_process(spread, alone, name, count):
    expected = alone(name)
    for actual in spread(name, count):
        for kind in ("weights", "optimizer", "hyper"):
            # Statistics of batches belong to a replica; see below.
            skipped = ("middle.0.running", NOISE) if name == NORMALISED else ()
            own = {n: v for n, v in actual[kind].items() if not n.startswith(skipped)}
            for key, value in own.items():
                gap = distance(value, expected[kind][key])
                assert gap <= CASES[name].tolerance, f"{kind} {key}: {gap}"


@pytest.mark.parametrize("name", NAMES)
def test_all_instances_end_with_the_same_bits(spread, name):
    first, *others = spread(name)
    for other in others:
        for kind in ("weights", "optimizer", "hyper", "counters"):
            own = {n: v for n, v in other[kind].items() if "running" not in n}
            assert all(torch.equal(first[kind][key], value) for key, value in own.items())
    assert not any(value.any() for value in first["sums"].values())


@pytest.mark.parametrize("count", [2, rare(4)])
def test_statistics_belong_to_each_replica(spread, alone, count):
    expected = alone(NORMALISED)["buffers"]
    results = [buffers for one in spread(NORMALISED, count) for buffers in one["buffers"]]
    assert len(results) == len(expected) == REPLICAS
    for own, other in zip(results, expected, strict=True):
        for key, value in own.items():
            assert distance(value, other[key]) <= 1e-6
    means = torch.stack([buffers["middle.0.running_mean"] for buffers in results])
    assert (means[0] != means[1:]).any(1).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_exchange_per_update_and_type(spread, name):
    for result in spread(name):
        counted, updates = result["exchanges"], result["updates"]
        # 16 float32 or 32 half fill 64 bytes, at multiples of which tensors begin.
        step = 32 if "half" in name and name != SCALED and "stochastic" not in name else 16
        sizes = [24, 6, 18, 3, *([6, 6] if name == NORMALISED else [])]
        numbers = sum(-(-size // step) * step for size in sizes) + 14
        # Half sums travel in float32; the count of saturated gradients is a double of its own.
        per_update = 4 * numbers + (8 if name == SCALED else 0)
        assert counted["calls"] == updates * (2 if name == SCALED else 1)
        assert counted["bytes"] == updates * per_update
        assert counted["seconds"] > 0


def test_the_scale_follows_the_gradients_of_all_instances(spread, alone):
    expected = alone(SCALED)
    assert expected["hyper"]["loss_scaling"] == 2.0**17
    assert expected["counters"]["saturated_gradients"] > 0
    for one in spread(SCALED):
        assert torch.equal(one["hyper"]["loss_scaling"], expected["hyper"]["loss_scaling"])
        for name, value in one["counters"].items():
            assert torch.equal(value, expected["counters"][name])
