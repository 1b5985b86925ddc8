"""Comparing runs: equal ones show nothing, others what differs, the largest change first."""

import dataclasses
import random
import re
from pathlib import Path

import pytest

from abele.report import comparison
from abele.report.journal import Journal, window_of
from abele.report.run_differences import differences
from helpers.reported import journal_of, run_of


@pytest.fixture(scope="module")
def run():
    return run_of("introduction")


def page(first, second):
    return comparison.page(first, second, (Path("first"), Path("second")))


def timed(seed, middle=0.02, spread=0.1, waited=0.001):
    """A journal of calls whose times scatter, and have a few outliers."""
    chance = random.Random(seed)
    times = [middle * chance.lognormvariate(0, spread) for _ in range(300)]
    times[::40] = [5 * each for each in times[::40]]
    windows = [
        window_of(i * 0.1, (waited * chance.random(), 0.0, took, 0.0), first=i)
        for i, took in enumerate(times)
    ]
    return Journal(windows=tuple(windows))


@pytest.mark.parametrize("seed", range(10))
def test_two_equal_runs_show_no_change(seed, run):
    assert differences((run, timed(seed)), (run, timed(seed + 100))) == []
    assert "No difference was found." in page((run, timed(seed)), (run, timed(seed + 100)))


@pytest.mark.parametrize(("factor", "change"), [(1.3, 0.3), (0.75, -0.25)])
def test_a_run_that_takes_longer_or_shorter_is_seen(factor, change, run):
    (only,) = differences((run, timed(1)), (run, timed(2, middle=0.02 * factor)))
    assert only.kind == "time"
    assert only.change == pytest.approx(change, abs=0.05)


@pytest.mark.parametrize(
    ("factor", "said"),
    [(0.1, "9.7 times as fast"), (0.8, "20% shorter"), (1.3, "30% longer"), (4, "4.0 times as")],
)
def test_the_first_sentence_says_how_much_longer_or_shorter(factor, said, run):
    calls = journal_of(computed=1.0, calls=40), journal_of(computed=factor, calls=40)
    assert said in page((run, calls[0]), (run, calls[1]))


def test_times_of_the_same_executable_are_laid_on_the_machine(run):
    first, slower = (run, timed(1)), (run, timed(2, middle=0.03))
    assert "the same executable ran. Its times differ, so the machine was" in page(first, slower)
    build = dataclasses.replace(run.build, executable="another")
    other = dataclasses.replace(run, build=build), slower[1]
    assert "the same executable ran" not in page(first, other)
    assert '<b class="worse">' in page(first, other)


def test_waiting_for_data_is_seen(run):
    (only,) = differences((run, timed(1)), (run, timed(2, waited=0.05)))
    assert only.what.startswith("before a call")


def test_waiting_for_batches_is_compared_apart(run):
    def loaded(seed, share):
        calls = timed(seed, waited=0.05)
        loading = (dataclasses.replace(e, loading=share * e.waited) for e in calls.windows)
        return run, Journal(windows=tuple(loading))

    (only,) = differences(loaded(1, 0.1), loaded(1, 0.9))
    assert only.what.startswith("waiting for a batch")


def test_a_pause_that_one_of_two_equal_runs_made_is_no_change(run):
    first, second = timed(1), timed(2)
    paused = dataclasses.replace(second.windows[150], waited=60.0)
    windows = (*second.windows[:150], paused, *second.windows[151:])
    assert differences((run, first), (run, Journal(windows=windows))) == []


@pytest.mark.parametrize("seed", range(5))
def test_runs_that_drift_by_less_than_they_scatter_show_no_change(seed, run):
    assert differences((run, timed(seed)), (run, timed(seed + 50, middle=0.0208))) == []


def test_options_programs_kernels_and_memory_are_named_largest_change_first(run):
    (program,) = run.programs
    option = dataclasses.replace(run, configuration={**run.configuration, "replicas": 2})
    fewer = tuple(each for each in program.operators if each.name != "aten.relu.default")
    memory = dataclasses.replace(program.memory, peak=3 * program.memory.peak)
    changed = dataclasses.replace(program, lowering="emitted", operators=fewer, memory=memory)
    other = dataclasses.replace(option, programs=(changed,))
    changes = differences((run, Journal()), (other, Journal()))
    assert [each.kind for each in changes] == ["memory", "operators", "kernels", "options"]
    assert changes[0].change == 2
    assert (changes[1].what, changes[1].change) == ("aten.relu.default in step", -1)
    assert (changes[2].first, changes[2].second) == ("interpreter", "emitted")
    assert (changes[3].first, changes[3].second) == ("1", "2")
    assert "+200.0%" in page((run, Journal()), (other, Journal()))


def test_runs_that_were_never_built_can_be_compared(run):
    before = dataclasses.replace(run, build=None, programs=())
    assert differences((before, Journal()), (before, Journal())) == []
    assert {each.what for each in differences((before, Journal()), (run, Journal()))} == {
        "names",
        "target",
        "what runs",
    }


def test_both_runs_stand_beside_each_other_also_where_they_do_not_differ(run):
    text = page((run, timed(1)), (run, timed(101)))
    assert "No difference was found." in text
    assert text.count(">300<") == 2  # calls
    assert text.count(run.build.executable[:16]) == 2
    assert "half of all take" in text


def test_calls_that_do_different_work_are_said_to(run):
    accumulating = {**run.configuration, "gradient_accumulation": 4}
    other = dataclasses.replace(run, configuration=accumulating)
    text = page((run, timed(1)), (other, timed(101)))
    assert "A call of the first does one micro-batch, of the second 4 accumulated" in text
    assert "Times of calls are the same" not in text  # that would be chance
    assert "A call of the first does" not in page((run, timed(1)), (run, timed(101)))
    micro_batches = re.search(r"a micro-batch takes \(median\)(.*?)</tr>", text).group(1)
    one, four = (float(each) for each in re.findall(r">([0-9.]+) ms<", micro_batches))
    assert one == pytest.approx(4 * four, rel=0.05)


def test_what_differs_is_bold_and_the_losses_are_there(run):
    named = dataclasses.replace(run, name="other")
    text = page((run, timed(1)), (named, timed(101)))
    assert "<h1>net and other</h1>" in text
    assert '<b class="value">other</b>' in text
    assert '<b class="value">reference</b>' not in text
    losses = page((run, journal_of()), (run, journal_of()))
    assert ">loss, first and last<" in losses
    assert losses.count(">2, 1.05<") == 2
    assert "<h1>Two runs of net</h1>" in page((run, timed(1)), (run, timed(101)))


def test_options_come_before_what_came_of_them(run):
    (program,) = run.programs
    memory = dataclasses.replace(program.memory, peak=30 * program.memory.peak)
    changed = dataclasses.replace(program, lowering="emitted", memory=memory)
    other = dataclasses.replace(
        run, programs=(changed,), configuration={**run.configuration, "replicas": 2}
    )
    text = page((run, Journal()), (other, Journal()))
    places = [text.index(f"<h3>{title}</h3>") for title in ("Options", "Memory", "Kernels")]
    assert places == sorted(places)
    assert "30 times" in text  # as percents, hard to read
