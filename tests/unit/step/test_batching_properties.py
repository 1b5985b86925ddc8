"""Batching for any numbers: the integers against numpy, and whole sessions against an oracle."""

import itertools

import numpy
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from abele.errors import BatchError
from abele.step import batching
from abele.step.config import OutputMode, StepConfig
from abele.step.replica_groups import Grouping, GroupType
from helpers.properties import examples
from helpers.runs import rule_for, started

LR = 2.0**-9  # so small that the weight stays positive


@st.composite
def configs(draw, largest=4, training=None):
    """Any legal configuration."""
    replicas = draw(st.integers(1, largest))
    size = draw(st.sampled_from([k for k in range(1, replicas + 1) if replicas % k == 0]))
    iterations = draw(st.integers(1, largest))
    trains = draw(st.booleans()) if training is None else training
    periods = [n for n in range(1, iterations + 1) if iterations % n == 0]
    return StepConfig(
        training=trains,
        device_iterations=iterations,
        gradient_accumulation=draw(st.integers(1, largest)) if trains else 1,
        replicas=replicas,
        input_group_size=size,
        input_group_type=draw(st.sampled_from(GroupType)),
        output_mode=draw(st.sampled_from(OutputMode)),
        output_period=draw(st.sampled_from(periods)),
    )


def pieces_seen(config):
    """[D, GA, R]: the micro-batch of the input that each replica sees, by numpy alone."""
    D, GA = config.device_iterations, config.gradient_accumulation
    R, S = config.replicas, config.input_group_size
    numbers = numpy.arange(D * GA * (R // S)).reshape(D, GA, R // S)
    if config.input_group_type is GroupType.CONSECUTIVE:
        return numpy.repeat(numbers, S, axis=2)
    return numpy.tile(numbers, (1, 1, S))


def kept(config, values):
    """What leaves a call that made these values, one per micro-step: [D, GA, R, ...]."""
    rest = values.shape[3:]
    return {
        OutputMode.ALL: lambda: values.reshape(-1, *rest),
        OutputMode.SUM: lambda: values.sum((0, 1)),
        OutputMode.FINAL: lambda: values[-1, -1],
        OutputMode.EVERY_N: lambda: values[
            config.output_period - 1 :: config.output_period
        ].reshape(-1, *rest),
    }[config.output_mode]()


@examples(600)
@given(configs(largest=6), st.integers(1, 5))
@example(StepConfig(replicas=4, input_group_size=2, input_group_type=GroupType.ORTHOGONAL), 3)
def test_the_schedule_is_what_numpy_says(config, m):
    seen = pieces_seen(config)
    steps = list(batching.schedule(config))
    D, GA, R = seen.shape
    assert [step.index for step in steps] == list(range(D * GA * R))
    assert [step.piece for step in steps] == seen.ravel().tolist()
    assert [step.replica for step in steps] == list(range(R)) * (D * GA)
    updates = numpy.zeros_like(seen)
    updates[:, -1, -1] = config.training
    assert [step.updates for step in steps] == updates.astype(bool).ravel().tolist()
    assert batching.micro_batches(config) == seen.max() + 1
    assert batching.micro_batch_size(m * (seen.max() + 1), config) == m
    assert batching.parts_out(config) == len(kept(config, seen))


@examples(200)
@given(configs(largest=6), st.integers(1, 1000))
def test_other_numbers_of_rows_are_refused(config, rows):
    assume(rows % batching.micro_batches(config))
    with pytest.raises(BatchError, match="Invalid batch dimension"):
        batching.micro_batch_size(rows, config)


@examples(200)
@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from(GroupType))
def test_every_replica_is_in_one_group_of_the_size(replicas, size, kind):
    if replicas % size:
        with pytest.raises(BatchError, match=f"Groups of {size} replicas"):
            Grouping(replicas, size, kind)
        return
    grouping = Grouping(replicas, size, kind)
    members = [[r for r in range(replicas) if grouping.group_of(r) == g] for g in range(replicas)]
    assert all(len(group) == size for group in members[: grouping.count])
    assert grouping.firsts() == [group[0] for group in members[: grouping.count]]
    steps = {b - a for group in members for a, b in itertools.pairwise(group)}
    assert steps <= ({1} if kind is GroupType.CONSECUTIVE else {grouping.count})


class Counting(torch.nn.Module):
    """The row sums, their sum and how often this replica has run; one weight for training."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x):
        self.runs.add_(1)
        scores = self.weight * x
        loss = torch.nn.functional.l1_loss(scores, torch.zeros_like(scores), reduction="sum")
        return scores, loss, self.runs.clone()


@examples(40)
@given(configs(largest=3), st.integers(1, 3), st.integers(0, 2**31))
def test_a_session_consumes_and_returns_rows_in_the_documented_order(config, m, seed):
    seen = pieces_seen(config)
    rows = numpy.random.default_rng(seed).integers(1, 9, (seen.max() + 1, m, 2))
    model = Counting()
    rule = rule_for(model, "sgd", lr=LR, momentum=0.0) if config.training else None
    x = torch.from_numpy(rows).float()
    session, _ = started(model, [x[0]], rule, config)
    output = session.step([x.flatten(0, 1)])
    weight, per_iteration = 1.0, []
    for pieces in seen:
        per_iteration.append(rows[pieces] * weight)  # [GA, R, m, 2]
        if config.training:
            weight -= LR * rows[pieces].sum((2, 3)).mean()
    scores = numpy.stack(per_iteration)
    runs = numpy.arange(1, seen[:, :, 0].size + 1).reshape(*seen.shape[:2], 1)
    outputs = [scores, scores.sum((3, 4)), numpy.broadcast_to(runs, seen.shape)]
    expected = [kept(config, values) for values in outputs]
    expected[0] = expected[0].reshape(-1, 2)
    for value, wanted in zip(output, expected, strict=True):
        wanted = wanted.reshape(()) if wanted.shape == (1,) else wanted
        torch.testing.assert_close(value, torch.from_numpy(wanted.copy()).float())
    torch.testing.assert_close(session.params["weight"], torch.tensor(weight, dtype=torch.float32))
