"""Perf counters, latencies and cycle counts are measured and have their shapes; synthetic data."""

import time

import pytest
import torch

import poptorch
from helpers.wrapping import Calls, inference, options, rows, scorer, sgd, trainer
from poptorch._wrapper import observing

KINDS = ("input", "input_complete", "output", "output_complete")
LATENCIES = ("getHostIpuLatency", "getComputeLatency", "getIpuHostLatency", "getLatency")


def lengths(counters):
    return {kind: [len(moments) for moments in counters[kind]] for kind in KINDS}


def test_before_the_first_call_there_is_one_empty_list_of_each():
    wrapped = trainer(scorer())
    assert wrapped.getPerfCounters() == {kind: [[]] for kind in KINDS}
    wrapped.compile(*rows(4))
    assert wrapped.getPerfCounters() == {kind: [[]] for kind in KINDS}
    assert all(getattr(wrapped, name)() == (0.0, 0.0, 0.0) for name in LATENCIES)


@pytest.mark.parametrize(
    ("mode", "leaving"),
    [
        (poptorch.OutputMode.All, 12),
        (poptorch.OutputMode.Final, 2),
        (poptorch.OutputMode.Sum, 2),
        ((poptorch.OutputMode.EveryN, 3), 4),
    ],
)
def test_every_tensor_has_one_moment_per_transfer(mode, leaving):
    wrapped = trainer(
        scorer(), deviceIterations=3, gradientAccumulation=2, replicationFactor=2, outputMode=mode
    )
    wrapped(*rows(12))
    inputs, outputs = [12, 12], [leaving, leaving]
    assert lengths(wrapped.getPerfCounters()) == dict(
        zip(KINDS, (inputs, inputs, outputs, outputs), strict=True)
    )


class Clock:
    """A clock that stands still but for a microsecond at each look, and while programs run."""

    def __init__(self):
        self._now_ns = 0

    def look(self):
        self._now_ns += 1000
        return self._now_ns

    def slow(self, wrapped, *seconds):
        """Let the micro-steps of the next call take so long, one after the other."""
        runner, took = wrapped._executable.session.runner, iter(seconds)
        run = runner._programs[0]

        def slowly(arguments):
            self._now_ns += round(1e9 * next(took))
            return run(arguments)

        runner._programs = [slowly] * len(runner._programs)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", clock.look)
    return clock


def test_compute_latency_is_the_time_of_the_program(clock):
    wrapped = inference(lambda x: x + 1, deviceIterations=2)
    wrapped(torch.ones(2))
    clock.slow(wrapped, 0.02, 0.06)
    wrapped(torch.ones(2))
    shortest, longest, average = wrapped.getComputeLatency()
    assert 0.02 <= shortest < 0.021
    assert 0.06 <= longest < 0.061
    assert average == pytest.approx((shortest + longest) / 2)
    assert wrapped.getLatency()[1] >= longest
    assert max(wrapped.getHostIpuLatency()) < 0.02


def test_latencies_of_the_same_moments_by_hand():
    counters = {
        "input": [[0.0, 1.0, 2.0, 3.0], [0.5, 1.5, 2.5, 3.5]],
        "input_complete": [[0.6, 1.6, 2.6, 3.6], [0.7, 1.7, 2.7, 3.7]],
        "output": [[2.0, 4.0]],
        "output_complete": [[5.0, 6.0]],
    }
    assert observing.latency(counters, "input", "input_complete") == pytest.approx((0.7,) * 3)
    # Four steps go in, two come out: 0 and 1 belong to the first, 2 and 3 to the second.
    assert observing.latency(counters, "input", "output_complete") == (4.0, 5.0, 4.5)
    assert observing.latency(counters, "input_complete", "output") == pytest.approx((1.3,) * 3)


def test_cycles_are_nanoseconds_of_the_first_replica(clock):
    wrapped = trainer(scorer(), logCycleCount=True, replicationFactor=2)
    with pytest.raises(poptorch.Error, match="run the model at least once"):
        wrapped.cycleCount()
    wrapped(*rows(4))
    clock.slow(wrapped, 0.03, 0.3)
    wrapped(*rows(4))
    cycles = wrapped.cycleCount()
    assert isinstance(cycles, int)
    assert 30_000_000 <= cycles < 31_000_000


def test_after_destroy_there_is_nothing_to_see():
    wrapped = trainer(scorer(), logCycleCount=True)
    wrapped(*rows(4))
    wrapped.destroy()
    assert wrapped.getLatency() == (0.0, 0.0, 0.0)
    with pytest.raises(poptorch.Error, match="run the model at least once"):
        wrapped.cycleCount()


# -- synthetic data ------------------------------------------------------------------------


def echo(mode, *inputs, **settings):
    """What a model sees of its inputs in a mode of synthetic data."""
    opts = options(**settings)
    opts._Popart.set("syntheticDataMode", mode)
    wrapped = poptorch.inferenceModel(Calls(lambda self, *x: tuple(y + 0 for y in x)), opts)
    first, second = wrapped(*inputs), wrapped(*inputs)
    for left, right in zip(first, second, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)
    return wrapped, second


def test_synthetic_data_replaces_the_callers_values():
    ones, classes = torch.ones(100, 100), torch.full((100,), 7)
    wrapped, (normal, zeros) = echo(2, ones, classes, deviceIterations=4)
    assert normal.shape == (100, 100)
    assert zeros.unique().tolist() == [0]
    assert normal.mean().item() == pytest.approx(0, abs=0.05)
    assert normal.std().item() == pytest.approx(1, abs=0.05)
    assert ones.unique().tolist() == [1]
    assert lengths(wrapped.getPerfCounters()) == {kind: [0, 0] for kind in KINDS}
    assert all(getattr(wrapped, name)() == (0.0, 0.0, 0.0) for name in LATENCIES)


def test_synthetic_zeros_and_uniform_numbers():
    _, (zeros,) = echo(1, torch.ones(50))
    assert zeros.unique().tolist() == [0]
    _, (uniform,) = echo(3, torch.ones(1000, dtype=torch.half))
    assert uniform.dtype is torch.half
    assert 0 <= uniform.min() < 0.1 < 0.9 < uniform.max() <= 1
    with pytest.raises(poptorch.Error, match="syntheticDataMode is 4"):
        echo(4, torch.ones(1))


def test_training_runs_on_synthetic_data_and_leaves_inputs_and_streams_alone():
    model = scorer()
    wrapped = poptorch.trainingModel(model, options(enableSyntheticData=True), sgd(model))
    x = torch.full((4, 4), float("nan"))
    before = torch.get_rng_state()
    loss, _ = wrapped(x, torch.ones(4, 3))
    assert torch.isfinite(loss)
    assert x.isnan().all()
    assert torch.equal(before, torch.get_rng_state())


def test_inputs_that_forward_writes_are_not_sent_back():
    opts = options(enableSyntheticData=True)
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: x.add_(1)), opts)
    x = torch.ones(3)
    wrapped(x)
    assert x.tolist() == [1, 1, 1]
