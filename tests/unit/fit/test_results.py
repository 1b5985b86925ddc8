"""What results of calls take, beside sums made by hand."""

import itertools

import pytest
import torch

from abele.fit import Interval, run
from abele.fit.run import of_calls
from abele.runtime.session import assemble
from abele.step import batching
from abele.step.config import OutputMode, StepConfig
from helpers.runs import captured

ONE = 4 * 8 * 4 + 4 * 4  # bytes of both results of a micro-batch


class Two(torch.nn.Module):
    """Rows [4, 8] -> themselves and their sums."""

    def forward(self, x):
        return x * 2, x.sum(1)


def forward(rows=4):
    (program,) = captured(Two(), (torch.randn(rows, 8),)).programs
    return program


def results(*, on_host=True, **settings):
    return of_calls(forward(), StepConfig(training=False, **settings), on_host=on_host)


@pytest.fixture(params=[True, False], ids=["kept apart", "leaving holes"], autouse=True)
def kind(request, monkeypatch):
    """With the library that keeps results apart, and without it."""
    monkeypatch.setattr(run.arena, "available", lambda: request.param)


def in_ones(interval):
    """At least, and the numbers of results whose gaps are counted above that."""
    one = run.returned(ONE)
    expected, most = interval.expected / one.expected, interval.high / one.high
    assert expected == pytest.approx(most)
    return [interval.low / ONE, pytest.approx(expected)]


def test_a_single_micro_batch_has_only_what_its_program_returns_and_the_call_before():
    of = results()
    assert of.earlier == Interval.exact(0)
    assert of.joining is None
    assert in_ones(of.before) == [0, 1]


def test_results_of_all_micro_batches_are_kept_and_joined():
    of = results(device_iterations=4, output_mode=OutputMode.ALL)
    assert in_ones(of.earlier) == [3, 3]
    assert of.joining is not None
    assert in_ones(of.joining) == [8, 8]
    assert in_ones(of.before) == [0, 4]


def test_what_nobody_keeps_may_be_there_while_the_next_one_runs():
    of = results(device_iterations=4, output_mode=OutputMode.FINAL)
    assert in_ones(of.earlier) == [0, 1]
    assert of.joining is None
    of = results(device_iterations=4, output_mode=OutputMode.EVERY_N, output_period=2)
    assert in_ones(of.earlier) == [1, 2]
    assert of.joining is not None
    assert in_ones(of.joining) == [4, 4]


def test_an_update_of_its_own_comes_after_the_results_of_its_micro_batch():
    config = StepConfig(gradient_accumulation=3, output_mode=OutputMode.ALL)
    of = of_calls(forward(), config, on_host=True)
    assert in_ones(of.earlier) == [2, 2]
    assert in_ones(of.at_update) == [3, 3]


def test_on_another_device_results_have_no_gaps_and_the_caller_has_them_elsewhere():
    of = results(on_host=False, device_iterations=2, output_mode=OutputMode.ALL)
    assert of.earlier == Interval.exact(ONE)
    assert of.before == Interval.exact(0)


def test_large_results_go_back_to_the_system():
    side = 2**25 // 32
    small = run.returned(4 * side)
    before = of_calls(forward(side), StepConfig(training=False), on_host=True).before
    assert before == Interval.sum(
        [Interval(0, 2**25, 2**25), Interval(0, small.expected, small.high)]
    )


def most_at_once(profile):
    """The most bytes that were asked for and not yet given back."""
    events = sorted(profile.events(), key=lambda each: each.time_range.start)
    return max(itertools.accumulate(each.self_cpu_memory_usage for each in events))


@pytest.mark.parametrize(
    "settings",
    [
        {"device_iterations": 3, "output_mode": OutputMode.ALL},
        {"device_iterations": 4, "output_mode": OutputMode.SUM},
        {"device_iterations": 2, "replicas": 2, "output_mode": OutputMode.SUM},
        {"replicas": 2, "output_mode": OutputMode.FINAL},
    ],
)
def test_joining_takes_what_the_session_takes(settings):
    of, config = results(**settings), StepConfig(training=False, **settings)
    count = sum(step.keeps for step in batching.schedule(config))
    kept = [[torch.zeros(4, 8), torch.zeros(4)] for _ in range(count)]
    with torch.profiler.profile(profile_memory=True) as profile:
        joined = assemble(kept, config)
    assert of.joining is not None
    most = count * ONE + most_at_once(profile)
    assert of.joining.low <= most <= of.joining.high
    returned = run.returned(sum(each.nbytes for each in joined))
    assert of.before.expected == pytest.approx(returned.expected)


def test_holes_are_counted_only_where_torch_leaves_them(monkeypatch):
    monkeypatch.setattr(run.arena, "available", lambda: True)
    apart = run.returned(2**20)
    monkeypatch.setattr(run.arena, "available", lambda: False)
    holes = run.returned(2**20)
    assert apart.low == apart.expected == holes.low == 2**20
    assert holes.expected > apart.high > 2**20
