"""Journals: nothing is lost but a torn line, and no journal grows without bound."""

import errno
import json
import os
import signal
import subprocess

import pytest

from abele.report import journal
from abele.report.journal import JournalWriter, read_journal, window_of
from helpers.warm_python import python


def called(writer, index, at, parts, *losses):
    writer.calls(window_of(at, parts, *losses, first=index))


def written(folder, calls=3, **more):
    writer = JournalWriter(folder, **more)
    writer.add("stage", 0.1, "capture")
    for index in range(calls):
        called(writer, index, 1.0 + index, (0.5, 0.01, 0.2, 0.02), 4.0 - index)
    return writer


def test_what_was_written_is_read_again(tmp_path):
    writer = written(tmp_path)
    writer.add("error", 9.0, "no memory", type="MemoryError", where="a call")
    writer.add("end", 9.5, "finished")
    writer.close()
    journal_read = read_journal(tmp_path)
    assert journal_read.calls == 3
    assert [each.loss for each in journal_read.windows] == [4.0, 3.0, 2.0]
    assert journal_read.windows[0].in_calls == pytest.approx(0.23)
    assert journal_read.windows[2].waited == 0.5
    assert [each.kind for each in journal_read.moments] == ["stage", "error", "end"]
    assert journal_read.moments[1].type == "MemoryError"
    assert journal_read.end.what == "finished"


def test_a_journal_is_read_while_it_is_written_and_without_its_torn_line(tmp_path):
    writer = written(tmp_path)
    assert read_journal(tmp_path).calls == 3
    with open(tmp_path / journal.FILE, "ab") as file:
        file.write(b'{"e": "calls", "at": 7.')
    journal_read = read_journal(tmp_path)
    assert journal_read.calls == 3
    writer.close()


def test_lines_that_mean_nothing_are_left_out_and_no_file_is_an_empty_journal(tmp_path):
    assert read_journal(tmp_path).windows == ()
    (tmp_path / journal.FILE).write_text('[]\n7\n{"e": "calls"}\nwords\n{"e": "note", "at": 1}\n')
    assert [each.kind for each in read_journal(tmp_path).moments] == ["note"]


def test_parts_of_parts_are_kept_however_lines_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr("abele.report.journal.LARGEST", 20_000)
    writer = JournalWriter(tmp_path)
    parts, of_parts = (0.01, 0.003, 0.001, 0.0), {"loading": 0.004, "compiling": 0.002}
    for index in range(2000):
        at = 0.1 * index
        writer.calls(window_of(at, parts, first=index, **of_parts))
    writer.close()
    windows = read_journal(tmp_path).windows
    assert max(each.count for each in windows) > 1
    assert sum(each.loading for each in windows) == pytest.approx(8.0)
    assert sum(each.other for each in windows) == pytest.approx(12.0)
    assert sum(each.compiling for each in windows) == pytest.approx(4.0)
    assert sum(each.handed for each in windows) == pytest.approx(2.0)


def test_a_journal_is_bounded_and_keeps_the_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "LARGEST", 20_000)
    monkeypatch.setattr(journal, "MOMENTS", 5)
    writer = JournalWriter(tmp_path)
    for index in range(2000):
        called(writer, index, index * 1.0, (0.25, 0.0, 0.5, 0.25), 1.0)
        if index % 100 == 0:
            writer.add("note", index, "saved")
        assert (tmp_path / journal.FILE).stat().st_size <= 20_000
    writer.close()
    journal_read = read_journal(tmp_path)
    assert journal_read.calls == 2000
    assert sum(each.computed for each in journal_read.windows) == pytest.approx(1000)
    assert 8 <= len(journal_read.moments) < 20
    assert journal_read.windows[0].quarters == (0.75,) * 5


def test_a_loss_that_is_no_number_is_counted_and_the_file_stays_json(tmp_path):
    writer = JournalWriter(tmp_path)
    called(writer, 0, 0.0, (0, 0, 1, 0), float("nan"))
    writer.close()
    (line,) = (tmp_path / journal.FILE).read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["not_finite"] == 1
    assert read_journal(tmp_path).windows[0].loss is None


def test_a_full_disk_ends_the_journal_and_it_says_so(tmp_path, monkeypatch):
    said = []
    writer = written(tmp_path, problem=said.append)
    full, reserve = os.write, tmp_path / f".{journal.FILE}.reserve"

    def no_space(file, data):
        if reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return full(file, data)

    monkeypatch.setattr(os, "write", no_space)
    called(writer, 3, 5.0, (0, 0, 1, 0))
    called(writer, 4, 6.0, (0, 0, 1, 0))
    writer.add("note", 7.0, "there is no room for that")
    writer.add("end", 8.0, "finished")
    writer.close()
    assert len(said) == 1
    assert "No space left on device. The run goes on" in said[0]
    journal_read = read_journal(tmp_path)
    assert journal_read.calls == 3
    assert [each.what for each in journal_read.moments[1:]] == [
        "the journal ends here: No space left on device",
        "finished",
    ]


def test_a_killed_process_leaves_all_calls_of_more_than_a_second_ago(tmp_path):
    program = (
        "import sys, time, pathlib\n"
        "from abele.report.journal import JournalWriter, window_of\n"
        "waiting = [window_of(i / 1e4, (0, 0, 1e-4, 0), first=i) for i in range(300)]\n"
        "bring = lambda: [writer.calls(waiting.pop()) for _ in range(len(waiting))]\n"
        "writer = JournalWriter(pathlib.Path(sys.argv[1]), bring=bring)\n"
        "time.sleep(1); print('now', flush=True); time.sleep(60)\n"
    )
    command = [python(), "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
    assert read_journal(tmp_path).calls == 300


@pytest.mark.long
def test_the_journal_of_a_week_stays_small_and_is_read_at_any_time(tmp_path):
    writer = JournalWriter(tmp_path)
    week, each, largest = 7 * 24 * 3600.0, 5.0, 0  # each call has a line of its own
    for call in range(int(week / each)):
        called(writer, call, call * each, (0.1, 0.01, 4.8, 0.09), 1.0 / (call + 1))
        if call % 20_000 == 0:
            largest = max(largest, (tmp_path / journal.FILE).stat().st_size)
            assert read_journal(tmp_path).calls == call + 1
    writer.close()
    assert max(largest, (tmp_path / journal.FILE).stat().st_size) < 50_000_000 / 10
    read = read_journal(tmp_path)
    assert read.calls == int(week / each)
    assert read.windows[-1].until == pytest.approx(week, abs=10)
