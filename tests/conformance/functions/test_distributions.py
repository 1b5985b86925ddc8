"""Distributions of torch in compiled functions, whose arguments programs check when they run."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Normal,
    kl_divergence,
)

from helpers.compiled_functions import Task, batch, compiles


@pytest.fixture(autouse=True)
def checked():
    Distribution.set_default_validate_args(True)  # torch's compiler turns this off for good


class Autoencoder(nn.Module):
    """A variational autoencoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 8), nn.Linear(4, 5)

    def forward(self, x):
        mean, scale = self.encoder(x).chunk(2, -1)
        found = Independent(Normal(mean, F.softplus(scale)), 1)
        prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        out = Bernoulli(logits=self.decoder(found.rsample()))
        return out, kl_divergence(found, prior).mean()


def autoencoding(wrap):
    task = Task(torch.optim.Adam, Autoencoder())

    @wrap
    def step(x):
        out, divergence = task.model(x)
        return task.update(divergence * 0.1 - out.log_prob((x > 0).float()).mean())

    return lambda i: step(batch(i)[0]), lambda: task


test_a_variational_autoencoder = compiles(programs=1)(autoencoding)
test_on_the_processor = pytest.mark.compiler(compiles(programs=1, target="cpu")(autoencoding))


@compiles(programs=1)
def test_a_policy_gradient(wrap):
    task = Task(torch.optim.Adam)

    @wrap
    def step(x, advantages):
        policy = Categorical(logits=task.model(x))
        actions = policy.sample()
        loss = -(policy.log_prob(actions) * advantages).mean() - 0.01 * policy.entropy().mean()
        return task.update(loss), actions

    return lambda i: step(batch(i)[0], batch(i)[1].float()), lambda: task


@compiles(programs=2)
def test_checks_that_are_turned_off(wrap):
    density = wrap(lambda scale: Normal(torch.zeros(3), scale).log_prob(torch.ones(3)))

    def call(i):
        Distribution.set_default_validate_args(i != 3)
        return density(torch.tensor([1.0, -1.0 if i == 3 else 1.0, 1.0]))

    return call, list


@pytest.mark.parametrize("invalid", [1, 3])  # the first run of the program, and a later one
def test_an_argument_that_is_not_valid_fails_as_in_plain_pytorch(invalid):
    def build(wrap):
        task, other, seen = Task(), Task(), []

        @wrap
        def step(x, y, scale):
            seen.append(len(seen))
            task.update(task.loss(x, y))
            noise = Normal(torch.zeros(3), scale).rsample()
            return other.update(F.cross_entropy(other.model(x) + noise, y))

        def call(i):
            return step(*batch(i), torch.tensor([1.0, -1.0 if i == invalid else 1.0, 1.0]))

        return call, lambda: (task, other, seen)

    compiles(programs=1)(build)()
