"""Kernels of two runs: equal ones show nothing, slower ones by how much of the step they cost."""

import dataclasses
import random
from pathlib import Path

import pytest

from abele.report import timing
from abele.report.comparison import page
from abele.report.journal import Journal, quarters_of
from abele.report.record import Kernel, Timing
from abele.report.run_differences import ENOUGH, MANY, differences, not_compared
from helpers.models import MODELS
from helpers.reported import recorded, run_of
from helpers.runs import rule_for, started

COUNT = 40  # kernels


@pytest.fixture(scope="module")
def run():
    return run_of("dense")


def kernel(chance, name, seconds, runs):
    """A kernel whose times scatter by a tenth, some of them far more."""
    times = [seconds * chance.lognormvariate(0, 0.1) for _ in range(runs)]
    times[:: max(3, runs // 3)] = [3 * each for each in times[:: max(3, runs // 3)]]
    return Kernel(
        what="loop",
        operators=((name, 1.0),),
        phase="forward",
        module="",
        line="",
        began=0.0,
        seconds=min(times),
        operations=0,
        bytes=0,
        least=0.0,
        quarters=quarters_of(times),
    )


def with_kernels(run, seed, *, runs=30, factor=1.0):
    """The run with kernels of equal length; the first takes ``factor`` times as long."""
    chance = random.Random(seed)
    kernels = tuple(
        kernel(chance, f"aten.op{i}", 1e-3 * (factor if i == 0 else 1.0), runs)
        for i in range(COUNT)
    )
    timed = Timing(
        runs=runs // 4,
        seconds=COUNT * 1e-3,
        clocked=COUNT * 1e-3,
        clocks=0.0,
        kernels=kernels,
        all_runs=runs,
    )
    (program,) = run.programs
    return dataclasses.replace(run, programs=(dataclasses.replace(program, timing=timed),))


def compared(first, second):
    return differences((first, Journal()), (second, Journal()))


@pytest.mark.parametrize("runs", [2, ENOUGH - 1, ENOUGH, 12, MANY, 30])
@pytest.mark.parametrize("seed", range(20))
def test_two_equal_runs_show_no_change(seed, runs, run):
    first, second = (with_kernels(run, each, runs=runs) for each in (seed, seed + 100))
    assert compared(first, second) == []


@pytest.mark.parametrize("factor", [2.0, 0.4])
def test_a_kernel_that_is_slower_or_faster_is_named(factor, run):
    (only,) = compared(with_kernels(run, 1), with_kernels(run, 2, factor=factor))
    assert (only.kind, only.what) == ("kernel_time", "aten.op0 of forward in step")
    assert only.change == pytest.approx(factor - 1, abs=0.15)
    assert only.weight == pytest.approx(abs(factor - 1) / COUNT, abs=0.005)


def test_a_change_that_the_step_does_not_feel_is_none(run):
    assert compared(with_kernels(run, 1), with_kernels(run, 2, factor=1.25)) == []


def test_the_largest_part_of_the_step_comes_first(run):
    first, second = with_kernels(run, 1), with_kernels(run, 2, factor=3.0)
    (program,) = second.programs
    a, b, *others = program.timing.kernels
    slower = dataclasses.replace(b, quarters=tuple(30 * each for each in b.quarters))
    timed = dataclasses.replace(program.timing, kernels=(a, slower, *others))
    second = dataclasses.replace(second, programs=(dataclasses.replace(program, timing=timed),))
    names = [each.what.split()[0] for each in compared(first, second)]
    assert names == ["all", "aten.op1", "aten.op0"]


def test_a_machine_that_was_slower_is_one_difference_and_not_forty(run):
    first, second = with_kernels(run, 1), with_kernels(run, 2, factor=2.0)
    (program,) = second.programs
    slower = tuple(
        dataclasses.replace(each, quarters=tuple(1.5 * time for time in each.quarters))
        for each in program.timing.kernels
    )
    timed = dataclasses.replace(program.timing, kernels=slower)
    second = dataclasses.replace(second, programs=(dataclasses.replace(program, timing=timed),))
    whole, only = compared(first, second)
    assert whole.what == "all kernels of step"
    assert whole.change == pytest.approx(0.5, abs=0.1)
    assert only.what == "aten.op0 of forward in step"
    assert only.change == pytest.approx(2.0, abs=0.3)


def test_what_was_not_timed_or_too_rarely_is_said(run):
    timed, rarely = with_kernels(run, 1), with_kernels(run, 1, runs=ENOUGH - 1)
    assert not_compared(timed, timed) == []
    assert not_compared(run, run) == ["Times of kernels are not compared: neither run was timed."]
    (only,) = not_compared(run, timed)
    assert only.endswith("are not compared: only one of the runs was timed.")
    (few,) = not_compared(timed, rarely)
    assert few.endswith(f"are not compared: fewer than {ENOUGH} runs were timed.")
    assert few in page((timed, Journal()), (rarely, Journal()), (Path("a"), Path("b")))


def test_a_session_that_is_timed_twice_shows_no_change():
    model = MODELS["introduction"]
    module = model.fresh()
    session, record = started(module, model.batch(), rule_for(module))
    run = recorded(session, record)
    budget_s = 60.0  # all runs are made, however slow the machine is just now
    for _ in range(10):  # the machine may really be slower the second time, but not always
        first, second = (timing.timed(run, session.executable, session, budget_s) for _ in range(2))
        shown = compared(first, second)
        if not shown:
            break
    assert shown == []
    assert not_compared(first, second) == []
