"""Where the losses of two runs part, by journals that were never lived."""

import dataclasses

import pytest

from abele.report import loss_differences as losses
from abele.report.journal import Journal, JournalWriter, joined, read_journal, window_of
from helpers.reported import run_before

NAN, INF = float("nan"), float("inf")


def journal(*values, first=0):
    windows = [
        window_of(float(index), (0, 0, 1.0, 0), loss, first=index)
        for index, loss in enumerate(values, first)
    ]
    return Journal(windows=tuple(windows))


def together(count, loss, first, not_finite=0, instead=""):
    """One line of a journal for several calls."""
    one = window_of(0.0, (0, 0, 1.0, 0), first=first)
    return dataclasses.replace(one, count=count, loss=loss, not_finite=not_finite, instead=instead)


def run_of_calls(device_iterations):
    run = run_before()
    configuration = run.configuration | {"device_iterations": device_iterations}
    return dataclasses.replace(run, configuration=configuration)


def compared(one, other, iterations=(1, 1)):
    runs = [run_of_calls(each) for each in iterations]
    return losses.compare((runs[0], one), (runs[1], other))


def test_losses_that_are_the_same_do_not_part():
    made = compared(journal(3.0, 2.0, NAN), journal(3.0, 2.0, NAN))
    assert (made.compared, made.parted, made.first, made.before) == (3, 0, None, 3)
    assert (made.not_finite.update, made.not_finite.instead, made.stays) == (
        3,
        ("nan", "nan"),
        True,
    )


@pytest.mark.parametrize(("one", "other"), [(NAN, INF), (INF, -INF), (-INF, NAN)])
def test_losses_that_are_not_finite_in_other_ways_differ(one, other):
    made = compared(journal(3.0, one, 1.0), journal(3.0, other, 1.0))
    assert (made.first.update, made.parted, made.largest) == (2, 1, None)
    assert made.first.instead == (str(one), str(other))
    assert made.not_finite is None


def test_losses_that_become_finite_again_were_not_so_at_an_update():
    made = compared(journal(3.0, INF, 1.0), journal(3.0, INF, 1.0))
    assert (made.not_finite.update, made.stays, made.parted) == (2, False, 0)


def test_older_records_do_not_say_which_losses_that_are_not_finite_are_the_same():
    (line,) = journal(NAN).windows
    older = Journal(windows=(dataclasses.replace(line, instead=""),))
    assert compared(older, journal(NAN)).compared == 0
    made = compared(older, journal(2.0))
    assert (made.compared, made.parted) == (1, 1)


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


def test_one_bit_counts():
    made = compared(journal(3.0, 2.0), journal(3.0, 2.0000000000000004))
    assert (made.first.update, made.before, made.parted) == (2, 1, 1)


def test_the_largest_distance_is_relative_and_the_first_of_equals():
    made = compared(journal(1.0, 100.0, 1.0, 1.0), journal(1.0, 110.0, 0.5, 2.0))
    assert (made.largest.update, made.largest.distance) == (3, 0.5)


def test_a_loss_that_is_not_finite_in_one_run_parts():
    made = compared(journal(3.0, NAN), journal(3.0, 2.0))
    assert (made.first.update, made.first.first, made.first.second) == (2, None, 2.0)
    assert made.largest is None


def test_zero_losses_have_no_distance():
    assert losses.Pair(update=1, first=0.0, second=-0.0).distance == 0


def test_lines_of_several_calls_are_compared_where_both_end_at_the_same_update():
    one = Journal(windows=(*journal(3.0).windows, together(9, 2.0, 1), together(5, 1.0, 10)))
    other = Journal(windows=(*journal(3.0).windows, together(4, 2.5, 1), together(10, 1.5, 5)))
    made = compared(one, other)
    assert (made.compared, made.before, made.first.update) == (2, 1, 15)


@pytest.mark.parametrize(
    ("loss", "not_finite", "instead", "count"),
    [(2.0, 1, "", 1), (None, 1, "nan", 2), (None, 4, "inf", 2), (None, 4, "", 1), (None, 0, "", 1)],
)
def test_whether_the_last_of_several_calls_was_finite_is_not_guessed(
    loss, not_finite, instead, count
):
    lines = Journal(windows=(*journal(3.0).windows, together(4, loss, 1, not_finite, instead)))
    assert compared(lines, lines).compared == count


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
