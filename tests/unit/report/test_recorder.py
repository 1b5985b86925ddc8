"""The recorder: it writes every call, ends once, and leaves a forked child alone."""

import dataclasses
import errno
import os
import time

import pytest

from abele.report.endings import with_causes
from abele.report.journal import SINGLE
from abele.report.optimizer import Optimizer, ParameterGroup
from abele.report.page import FILE
from abele.report.record import Waits, read_run
from abele.report.recorder import FIRST_CALLS, Recorder, ReportWarning, parts_of
from abele.runtime.observers import CallRecord
from abele.storage import atomic
from helpers.reported import run_before


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(tmp_path, run_before())
    made.built(made.run, None)
    yield made
    made.ended("finished")


def call(began=0, took=1000, error=None):
    return CallRecord(began, [began + 100, began + took - 100], began + took, error)


def test_no_call_is_lost_however_many_there_are(recorder):
    begin = time.perf_counter_ns()
    for index in range(SINGLE + 500):
        recorder.on_call_end(call(begin + 2000 * index))
    journal_read = recorder.read()
    assert journal_read.calls == SINGLE + 500
    assert sum(each.computed for each in journal_read.windows) == pytest.approx(
        (SINGLE + 500) * 800e-9
    )
    # But for the calls before which the page was written.
    assert sum(each.waited for each in journal_read.windows[1:]) == pytest.approx(
        (SINGLE + 499 - len(FIRST_CALLS)) * 1000e-9, abs=1e-6
    )


def test_what_passes_before_a_call_is_loading_or_something_else(tmp_path):
    loaded = Waits(7_000_000)
    recorder = Recorder(tmp_path, run_before(), loading=lambda: loaded)
    recorder.built(recorder.run, None)  # what was loaded before is of no call
    recorder.on_call_end(call())  # after which the page is written
    begin = time.perf_counter_ns()
    recorder.on_call_end(call(begin))
    for index, loading in enumerate((300, 400, 5000), 1):
        loaded.ns += loading
        recorder.on_call_end(call(begin + 1500 * index))
    windows = recorder.read().windows[-3:]
    recorder.ended("finished")
    # Nobody has waited longer for a batch than from call to call.
    assert [round(1e9 * each.loading) for each in windows] == [300, 400, 500]
    assert [round(1e9 * each.other) for each in windows] == [200, 100, 0]


def test_the_parts_of_a_call_are_all_of_it():
    record = CallRecord(5, [10, 20, 15, 40], 50)  # micro-steps of a pipeline overlap
    assert parts_of(record) == (5, 30, 10)
    assert parts_of(CallRecord(5, [], 50)) == (0, 45, 0)


def test_a_call_that_fails_is_no_call_and_says_which_it_was(recorder):
    recorder.on_call_end(call())
    recorder.on_call_end(call(5000, error=ValueError("too wide")))
    journal_read = recorder.read()
    assert journal_read.calls == 1
    (error,) = journal_read.of_kind("error")
    assert (error.type, error.where, error.what) == ("ValueError", "call 2", "too wide")


def test_the_page_is_written_again_after_a_while_and_no_call_has_waited_for_it(
    recorder, tmp_path, monkeypatch
):
    monkeypatch.setattr("abele.report.recorder.AGAIN_S", 0.0)
    monkeypatch.setattr("abele.report.recorder.TIMES", 0)
    recorder.looked(recorder.run)  # what is due next is due at once
    for _ in range(3):
        now = time.perf_counter_ns()
        recorder.on_call_end(call(now))
    assert "3 calls" in (tmp_path / "report.html").read_text()
    monkeypatch.setattr("abele.report.recorder.AGAIN_S", 3600.0)
    recorder.looked(recorder.run)
    recorder.on_call_end(call(time.perf_counter_ns()))
    assert "4 calls" not in (tmp_path / "report.html").read_text()
    assert max(each.waited for each in recorder.read().windows[1:]) < 0.01


def test_where_the_disk_is_full_a_page_takes_the_room_of_the_older_one(recorder, tmp_path):
    written = atomic.write_text

    def full(path, text):
        if (tmp_path / FILE).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        written(path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("abele.report.page.write_text", full)
        recorder.failed("call 7", OSError(errno.ENOSPC, "No space left on device"))
    assert "No space left on device" in (tmp_path / FILE).read_text()


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("no data", "line 3: no data\nCaused by OSError\nCaused by KeyError: 'run'"),
        ("gone", "line 3: no data\nCaused by OSError: gone\nCaused by KeyError: 'run'"),
    ],
)
def test_every_cause_is_noted_by_its_type_and_each_text_once(recorder, cause, text):
    error = ValueError("line 3: no data")
    error.__cause__ = OSError(cause)
    error.__cause__.__cause__ = KeyError("run")
    recorder.failed("call 1", error)
    (noted,) = recorder.read().of_kind("error")
    assert noted.what == text


def test_causes_that_go_in_a_circle_come_to_an_end():
    error, cause = ValueError("a"), OSError("b")
    error.__cause__, cause.__cause__ = cause, error
    assert with_causes(error) == "a\nCaused by OSError: b"


def test_it_ends_once(recorder):
    recorder.ended("failed")
    recorder.ended("finished")
    assert [each.what for each in recorder.read().of_kind("end")] == ["failed"]


def test_a_forked_child_writes_nothing(recorder, tmp_path):
    before = (tmp_path / "journal.jsonl").read_bytes()
    child = os.fork()
    if child == 0:
        recorder.on_call_end(call())
        recorder.failed("the child", ValueError())
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_warned_of(recorder, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("abele.report.page.write_text", full)
    with pytest.warns(ReportWarning, match="cannot be written.*No space left.*The run goes on"):
        recorder.changed(recorder.run, "other programs run")


@pytest.mark.parametrize(
    "error", [ValueError("no page"), UnicodeEncodeError("ascii", "\u00e9", 0, 1, "")]
)
def test_whatever_stops_a_page_is_one_warning(recorder, monkeypatch, error):
    def page(*args, **named):
        raise error

    monkeypatch.setattr("abele.report.page.page", page)
    with pytest.warns(ReportWarning, match=f"cannot be written: {type(error).__name__}"):
        recorder.changed(recorder.run, "other programs run")
    recorder.on_call_end(call())  # a second warning would be an error
    recorder.ended("finished")


def test_a_folder_that_was_deleted_stays_deleted(recorder, tmp_path):
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    recorder.ended("finished")
    assert not tmp_path.exists()


def of_rate(rate):
    groups = (ParameterGroup(parameters=1, values={"lr": rate}),)
    return Optimizer(name="torch.optim.SGD", groups=groups)


def test_values_that_change_are_written_when_they_change_but_not_each_time(tmp_path):
    run = dataclasses.replace(run_before(), optimizer=of_rate(0.5))
    recorder = Recorder(tmp_path, run)
    recorder.built(recorder.run, None)
    begin = time.perf_counter_ns()
    for index in range(5):
        recorder.on_call_end(call(begin + 2000 * index))
        recorder.optimizer(of_rate(1 / (3 + index // 2)))
    (first,) = read_run(tmp_path).optimizer.changes  # the others came within a second
    assert (first.calls, first.values) == (1, {"group0.lr": 1 / 3})
    recorder.ended("finished")
    assert [each.calls for each in read_run(tmp_path).optimizer.changes] == [1, 3, 5]


def test_a_run_that_does_not_train_has_no_values_to_change(recorder, tmp_path):
    recorder.on_call_end(call())
    recorder.optimizer(of_rate(0.1))
    assert recorder.run.optimizer is None


@pytest.mark.parametrize(("name", "count"), [("net", 1), ("instance_1", 0)])
def test_the_end_of_a_run_says_where_its_page_is_once(tmp_path, capsys, name, count):
    folder = tmp_path / name
    for _ in range(2):
        recorder = Recorder(folder, run_before())
        recorder.on_call_end(call())
        recorder.ended("finished")
        recorder.ended("finished")
    said = f"abele: the report of net is {folder / 'report.html'}\n"
    assert capsys.readouterr().err == said * count
