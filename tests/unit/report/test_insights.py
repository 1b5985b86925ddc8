"""Insights: each with a number of this run, and nothing where nothing is to be won."""

import dataclasses

import pytest

from abele.report.insights import MOST, insights
from abele.report.journal import Journal, window_of
from abele.report.page import page
from abele.report.record import ACTIVATIONS, Loop
from helpers.reported import run_of


@pytest.fixture(scope="module")
def run():
    return run_of("introduction")


def calls(waited=0.0, inputs=0.0, computed=0.02, count=100, **of_parts):
    parts = (waited, inputs, computed, 0.0)
    windows = (window_of(i, parts, first=i, **of_parts) for i in range(count))
    return Journal(windows=tuple(windows))


def test_a_run_that_computes_all_the_time_gets_no_advice(run):
    assert insights(run, calls()) == []
    assert "What would save most" not in page(run, calls())


def test_waiting_for_data_says_how_long_and_what_to_do(run):
    (only,) = insights(run, calls(waited=0.01))
    assert only.seconds == pytest.approx(1.0)
    assert only.saving == "up to 1.00 s"
    assert "33.3 % of the time" in only.what
    assert "processes of their own" in only.advice
    named = dataclasses.replace(run, advice={"waiting": "Use more workers."})
    assert "Use more workers." in page(named, calls(waited=0.01))


def test_what_waits_for_batches_is_told_apart_from_what_else_is_done_between_calls(run):
    most, least = insights(run, calls(waited=0.02, loading=0.005))
    assert (most.seconds, least.seconds) == pytest.approx((1.5, 0.5))
    assert "37.5 % of the time passes between calls without waiting for a batch" in most.what
    assert "Do less between calls" in most.advice
    assert least.what == "12.5 % of the time waits for batches."
    assert "processes of their own" in least.advice


def test_it_says_why_items_are_fetched_one_by_one(run):
    loop = Loop(batches=9, steps=1, seconds=1, waiting=0.9, why_single="Slow does more")
    (only,) = insights(dataclasses.replace(run, loop=loop), calls(waited=0.02, loading=0.02))
    assert only.what.endswith("waits for batches. Items are fetched one by one: Slow does more.")


def test_small_calls_are_told_of_device_iterations(run):
    (only,) = insights(run, calls(inputs=0.02))
    assert "50.0 % of a call" in only.what
    assert "device_iterations" in only.advice


@pytest.mark.parametrize(("cache", "count"), [("off", 1), ("hit", 0), ("miss", 0)])
def test_what_is_left_to_a_compiler_is_no_handing_over(cache, count, run):
    build = dataclasses.replace(run.build, cache=cache)
    advice = insights(dataclasses.replace(run, build=build), calls(inputs=0.02, compiling=0.02))
    assert [each.seconds for each in advice] == [pytest.approx(2.0)] * count
    assert all("left to a process that compiled meanwhile" in each.what for each in advice)
    assert all("Keep executables" in each.advice for each in advice)


@pytest.mark.parametrize(
    ("cache", "compiled", "count"),
    [("off", True, 1), ("off", False, 0), ("hit", True, 0), ("miss", True, 0)],
)
def test_compiling_without_a_cache_is_told_once_it_takes_long(cache, compiled, count, run):
    """Programs for which nothing is compiled are as long in loading as in making."""
    parts = {"cache": cache, "compiled": compiled}
    build = dataclasses.replace(run.build, seconds={"compile": 30.0}, **parts)
    advice = insights(dataclasses.replace(run, build=build), calls())
    assert [each.seconds for each in advice] == [30.0] * count


def test_activations_at_the_peak_are_told_with_their_bytes(run):
    (program,) = run.programs
    at = program.memory.phases["backward"]
    memory = dataclasses.replace(
        program.memory,
        curve=((0, 5, "a"), (at, 2**24, "b")),
        kinds={"activations for backward": (5, 2**23), "gradients": (0, 2**23)},
        peak=2**24,
        peak_step=at,
    )
    changed = dataclasses.replace(program, memory=memory)
    (only,) = insights(dataclasses.replace(run, programs=(changed,)), calls())
    assert (only.bytes, only.saving) == (2**23, "up to 8.0 MiB")
    assert "computed again" in only.advice


def test_all_activations_at_the_peak_count_and_not_the_largest_alone():
    (program,) = run_of("introduction").programs
    memory = program.memory
    assert len(memory.largest) > 2
    few = dataclasses.replace(memory, largest=memory.largest[:1])
    assert few.waiting == memory.waiting > 0


def test_there_are_never_more_than_seven_and_the_largest_comes_first(run):
    (program,) = run.programs
    kept = dataclasses.replace(program.memory.largest[0], phase="forward", bytes=2**23)
    memory = dataclasses.replace(
        program.memory,
        largest=(kept,),
        peak=2**23,
        curve=((0, 1, ""),),
        kinds={ACTIVATIONS: (2**23,)},
    )
    many = tuple(dataclasses.replace(program, memory=memory) for _ in range(9))
    advice = insights(dataclasses.replace(run, programs=many), calls(waited=0.01))
    assert len(advice) == MOST
    assert advice[0].seconds
