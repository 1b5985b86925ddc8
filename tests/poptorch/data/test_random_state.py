"""Random numbers of a wrapper can be written down and continued."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.wrapping import inference

X = torch.ones(4, 8)


def _dropping(**settings):
    return inference(lambda x: F.dropout(x, 0.5), **settings)


@pytest.mark.parametrize(
    "settings",
    [{"randomSeed": 5}, {"randomSeed": 5, "replicationFactor": 2}, {}],
    ids=["seed", "a generator per replica", "torch's own generator"],
)
def test_a_state_continues_where_it_was_taken(settings):
    wrapped = _dropping(**settings)
    wrapped(X)
    state = wrapped.rng_state
    expected = [wrapped(X) for _ in range(2)]
    wrapped.rng_state = state
    assert all(torch.equal(wrapped(X), value) for value in expected)


def test_the_first_number_is_the_seed():
    wrapped = _dropping(randomSeed=5)
    wrapped.compile(X)
    assert wrapped.rng_state[0] == 5
    assert all(type(number) is int for number in wrapped.rng_state)


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63)])
def test_the_largest_seeds_work_for_replicas_too(seed):
    wrapped = _dropping(randomSeed=seed, replicationFactor=2)
    first, second = wrapped(torch.ones(64, 8)).chunk(2)
    assert not torch.equal(first, second)
    assert wrapped.rng_state[0] == seed


def test_a_state_of_other_generators_is_refused():
    wrapped, other = _dropping(randomSeed=5), _dropping(randomSeed=5, replicationFactor=2)
    wrapped.compile(X)
    other.compile(X)
    with pytest.raises(ValueError, match="for 1 generators"):
        wrapped.rng_state = other.rng_state
