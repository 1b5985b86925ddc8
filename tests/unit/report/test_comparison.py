"""Two runs: equal ones show nothing, others what differs, and losses part where they do."""

import dataclasses
import random
import re

import pytest

from abele.report import comparison
from abele.report.journal import Journal, JournalWriter, joined, read_journal, window_of
from abele.report.run_differences import Pair, differences, of_losses
from helpers.reported import journal_of, run_before, run_of

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def run():
    return run_of("introduction")


def page(first, second):
    return comparison.page(first, second, ("first", "second"))


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
    assert "are the same." in page((run, timed(seed)), (run, timed(seed + 100)))


@pytest.mark.parametrize(("factor", "change"), [(1.3, 0.3), (0.75, -0.25)])
def test_a_run_that_takes_longer_or_shorter_is_seen(factor, change, run):
    (only,) = differences((run, timed(1)), (run, timed(2, middle=0.02 * factor)))
    assert only.kind == "time"
    assert only.change == pytest.approx(change, abs=0.05)


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
    text = page((run, Journal()), (other, Journal()))
    places = [text.index(f"\n{title}: ") for title in ("Options", "Kernels", "Memory")]
    assert places == sorted(places)


def test_runs_that_were_never_built_can_be_compared(run):
    before = dataclasses.replace(run, build=None, programs=())
    assert differences((before, Journal()), (before, Journal())) == []
    assert {each.what for each in differences((before, Journal()), (run, Journal()))} == {
        "names",
        "target",
        "what runs",
    }


def test_both_runs_stand_beside_each_other_with_what_differs_in_bold(run):
    accumulating = {**run.configuration, "gradient_accumulation": 4}
    other = dataclasses.replace(run, name="other", configuration=accumulating)
    text = page((run, timed(1)), (other, timed(101)))
    assert "<h1>first and second</h1>" in text
    assert text.count(">300<") == 2  # calls
    assert text.count(run.build.executable[:16]) == 2
    assert '<b class="value">other</b>' in text
    assert '<b class="value">reference</b>' not in text
    micro_batches = re.search(r"a micro-batch takes \(median\)(.*?)</tr>", text).group(1)
    one, four = (float(each) for each in re.findall(r">([0-9.]+) ms<", micro_batches))
    assert one == pytest.approx(4 * four, rel=0.05)
    assert page((run, journal_of()), (run, journal_of())).count(">2, 1.05<") == 2


# -- losses --------------------------------------------------------------------------------


def journal(*values, first=0):
    windows = [
        window_of(float(index), (0, 0, 1.0, 0), loss, first=index)
        for index, loss in enumerate(values, first)
    ]
    return Journal(windows=tuple(windows))


def together(count, loss, first):
    """One line of a journal for several calls."""
    one = window_of(0.0, (0, 0, 1.0, 0), loss, first=first)
    return dataclasses.replace(one, count=count)


def compared(one, other, iterations=(1, 1)):
    before = run_before()
    runs = [
        dataclasses.replace(before, configuration=before.configuration | {"device_iterations": n})
        for n in iterations
    ]
    return of_losses((runs[0], one), (runs[1], other))


@pytest.mark.parametrize(
    ("one", "other", "parted", "first", "before", "largest", "not_finite"),
    [
        ((3.0, 2.0, NAN), (3.0, 2.0, NAN), 0, None, 3, None, (3, "nan", "nan")),
        ((3.0, NAN, 1.0), (3.0, INF, 1.0), 1, (2, "nan", "inf"), 1, None, None),
        ((3.0, INF, 1.0), (3.0, -INF, 1.0), 1, (2, "inf", "-inf"), 1, None, None),
        ((3.0, NAN), (3.0, 2.0), 1, (2, "nan", 2.0), 1, None, None),
        ((3.0, 2.0), (3.0, 2.0000000000000004), 1, (2, 2.0, 2.0000000000000004), 1, 2, None),
        # The largest distance is relative, and the first of equals.
        ((1.0, 100.0, 1.0, 1.0), (1.0, 110.0, 0.5, 2.0), 3, (2, 100.0, 110.0), 1, 3, None),
    ],
)
def test_losses_part_where_a_bit_differs(one, other, parted, first, before, largest, not_finite):
    def pair(values):
        return values and Pair(update=values[0], first=values[1], second=values[2])

    made = compared(journal(*one), journal(*other))
    assert (made.compared, made.parted, made.before) == (len(one), parted, before)
    assert (made.first, made.not_finite) == (pair(first), pair(not_finite))
    assert (made.largest and made.largest.update) == largest


def test_journals_on_disk_say_what_losses_are_instead(tmp_path):
    writer = JournalWriter(tmp_path)
    for index, value in enumerate([NAN, 1.0, INF, INF, 2.0, -INF]):
        writer.calls(window_of(float(index), (0, 0, 1.0, 0), value, first=index))
    writer.close()
    lines = read_journal(tmp_path).windows
    assert [each.instead for each in lines] == ["nan", "", "inf", "inf", "", "-inf"]
    whole = joined(lines)
    assert (whole.loss, whole.instead, whole.not_finite) == (None, "-inf", 4)
    assert (joined(lines[:2]).loss, joined(lines[:2]).instead) == (1.0, "")


def test_zero_losses_have_no_distance():
    assert Pair(update=1, first=0.0, second=-0.0).distance == 0


def test_lines_of_several_calls_are_compared_where_both_end_at_the_same_update():
    one = Journal(windows=(*journal(3.0).windows, together(9, 2.0, 1), together(5, 1.0, 10)))
    other = Journal(windows=(*journal(3.0).windows, together(4, 2.5, 1), together(10, 1.5, 5)))
    made = compared(one, other)
    assert (made.compared, made.before, made.first.update) == (2, 1, 15)


def test_calls_with_several_updates_are_compared_by_updates():
    made = compared(journal(4.0, 3.0, 2.0, 1.0), journal(3.0, 1.5), iterations=(1, 2))
    assert made.updates == (4, 4)
    assert (made.compared, made.before, made.first.update) == (2, 2, 4)


def test_journals_that_were_thinned_keep_their_bits(tmp_path):
    values = [1 / (3 + i) for i in range(300)]
    writer = JournalWriter(tmp_path)
    for index, value in enumerate(values):
        writer.calls(window_of(float(index), (0, 0, 1.0, 0), value, first=index))
    writer._thin()
    writer.close()
    made = compared(read_journal(tmp_path), journal(*values))
    assert made.compared == 150
    assert made.first is None
