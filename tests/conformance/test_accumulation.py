"""Device iterations x gradient accumulation x replicas, against the loop written out."""

import dataclasses

import pytest
import torch

from abele.collectives.torch_group import Counts
from abele.step.config import MeanStrategy, OutputMode, Reduction, StepConfig
from helpers.models import MODELS
from helpers.runs import flat, rule_for, run, started

ROWS = 3
CALLS = 3
LAYOUTS = [
    pytest.param(1, 1, 1, id="one micro-batch"),
    pytest.param(3, 1, 1, id="device iterations"),
    pytest.param(1, 4, 1, id="accumulation"),
    pytest.param(1, 1, 2, id="replicas"),
    pytest.param(2, 4, 2, id="all three"),
]


def calls(model, config):
    """The batches of a few calls, as whole batches and as micro-batches."""
    rows = ROWS * config.device_iterations * config.gradient_accumulation * config.replicas
    whole = model.batches(CALLS, rows)
    return whole, [list(zip(*(t.split(ROWS) for t in batch), strict=True)) for batch in whole]


def written_out(module, config, micro_batches):
    """One call: sums of gradients, buffers per replica, an update per device iteration."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    buffers = [
        {name: value.clone() for name, value in module.named_buffers()}
        for _ in range(config.replicas)
    ]
    outputs = []
    for call in micro_batches:
        remaining = iter(call)
        for _ in range(config.device_iterations):
            optimizer.zero_grad()
            for _ in range(config.gradient_accumulation):
                for replica in range(config.replicas):
                    batch = next(remaining)
                    results = flat(torch.func.functional_call(module, buffers[replica], batch))
                    results[-1].backward()
                    outputs.append([value.detach() for value in results])
            if config.reduction is Reduction.MEAN:
                for parameter in module.parameters():
                    parameter.grad /= config.micro_batches_per_update
            optimizer.step()
    return outputs, dict(module.named_parameters()), buffers


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        ("dense", Reduction.SUM),
        *((name, Reduction.MEAN) for name in ("dense", "batch norm and dropout", "tied weights")),
    ],
)
@pytest.mark.parametrize(("iterations", "accumulation", "replicas"), LAYOUTS)
def test_a_call_is_the_loop_written_out(name, reduction, iterations, accumulation, replicas):
    model = MODELS[name]
    config = StepConfig(
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replicas=replicas,
        reduction=reduction,
        output_mode=OutputMode.ALL,
    )
    whole, micro = calls(model, config)
    module = model.fresh()
    session, _ = started(module, micro[0][0], rule_for(module), config)
    output = run(session, whole, seed=3)
    torch.manual_seed(3)
    outputs, params, buffers = written_out(module, config, micro)
    assert_equal(output.params, params)
    for replica in range(replicas):
        assert_equal(session.buffers[replica], buffers[replica])
    assert_equal(joined(output.outputs), joined(outputs))


def joined(outputs):
    """All rows of each output, whatever call or micro-batch they came from."""
    columns = zip(*outputs, strict=True)
    return {i: torch.cat([v.reshape(-1, *v.shape[1:]) for v in c]) for i, c in enumerate(columns)}


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        torch.testing.assert_close(value, expected[name].detach(), rtol=0, atol=0)


def test_processes_divide_the_mean_as_well():
    model = MODELS["dense"]
    module = model.fresh()
    config = StepConfig(gradient_accumulation=2, processes=2)
    session, _ = started(module, model.batch(ROWS), rule_for(module, momentum=0.0, lr=1.0), config)
    batch = model.batch(2 * ROWS)
    for rows in zip(*(tensor.split(ROWS) for tensor in batch), strict=True):
        module(*rows)[1].backward()
    session.step(batch)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(session.params[name], parameter.detach() - parameter.grad / 4)


class Twin:
    """A second process that always has the same values."""

    rank, size = 0, 2

    def __init__(self):
        self.counts = Counts()

    def gather(self, topic, text):
        return [text, text]

    def all_reduce(self, values, topic=""):
        values.mul_(2)

    def leave(self, topic, why):
        """Nobody to tell."""


@pytest.mark.parametrize("strategy", MeanStrategy)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_process_with_one_gradient_per_update_gives_that(strategy, dtype):
    model = MODELS["batch norm and dropout"]
    batches = model.batches(CALLS, 2 * ROWS)
    results = []
    for processes in (1, 2):
        module = model.fresh()
        rule = dataclasses.replace(rule_for(module), accumulator_dtype=dtype)
        config = StepConfig(
            device_iterations=2, processes=processes, mean_strategy=strategy, seed=3
        )
        twin = Twin() if processes == 2 else None
        session, _ = started(module, model.batch(ROWS), rule, config, collective=twin)
        for total in session.accumulators.values():
            total.fill_(9)  # what is found there is no part of the first update
        for batch in batches:
            session.step(batch)
            assert not any(total.any() for total in session.read_accumulators().values())
        results.append(session)
    exact = dtype is torch.float32
    for name, value in results[0].params.items():
        torch.testing.assert_close(
            results[1].params[name], value, rtol=0, atol=0 if exact else 2e-3
        )
