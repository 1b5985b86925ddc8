"""Instances of a run on one page: each with its exchange, and what went wrong elsewhere."""

import dataclasses
import os
import re
import subprocess
import threading
import time

import pytest

from abele.__main__ import main
from abele.report import files, instances, read_journal, read_run
from abele.report.journal import JournalWriter, window_of
from abele.storage.files import folder_lock
from helpers.reported import run_before


def instance(folder, number, *, count=2, waited=0.001, end="finished", **process):
    """An instance that has recorded three calls of 10 ms and an exchange in each."""
    before = run_before()
    run = dataclasses.replace(
        before,
        configuration={**before.configuration, "processes": count},
        exchanged={"calls": 3.0, "bytes": 3.0 * 2048, "seconds": 3 * waited},
        process=dataclasses.replace(before.process, **process),
    )
    inside = folder / instances.name_of(number) if number else folder
    inside.mkdir(exist_ok=True)
    run.write(inside)
    writer = JournalWriter(inside)
    for call in range(3):
        loss = 2.0 - call - number
        writer.calls(window_of(0.1 * call, (0.0, 0.0, 0.01, 0.0), loss, first=call))
    if end:
        writer.add("end", 1.0, end)
    writer.close()
    return run


def words(path):
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", path.read_text()))


def test_the_page_of_the_first_shows_all_with_their_exchanges(tmp_path):
    instance(tmp_path, 0, waited=0.004)
    instance(tmp_path, 1, waited=0.001)
    assert main(["report", str(tmp_path)]) == 0
    text = words(tmp_path / "report.html")
    row = r"{} {} finished 3 10\.0 ms 3 2\.0 KiB {} ms {} % {}"
    assert re.search(row.format(0, os.getpid(), r"4\.00", r"40\.0", "0"), text)
    assert re.search(row.format(1, os.getpid(), r"1\.00", r"10\.0", "-1"), text)
    assert "The others wait for instance 1: its exchanges take 1.00 ms, theirs up to 4.00" in text
    assert 'href="instance_1/report.html"' in (tmp_path / "report.html").read_text()


def test_instances_that_wait_alike_are_not_called_slow(tmp_path):
    instance(tmp_path, 0, waited=0.004)
    instance(tmp_path, 1, waited=0.0035)
    main(["report", str(tmp_path)])
    assert "wait for instance" not in words(tmp_path / "report.html")


def test_one_that_was_killed_is_said_at_the_top(tmp_path):
    with subprocess.Popen(["sleep", "0"]) as gone:
        pass
    instance(tmp_path, 0)
    instance(tmp_path, 1, end="", pid=gone.pid, since=1)
    main(["report", str(tmp_path)])
    text = words(tmp_path / "report.html")
    assert text.index("Instance 1 was killed") < text.index("What ran where")


def test_files_of_an_earlier_run_or_of_more_instances_do_not_count(tmp_path):
    run = instance(tmp_path, 0, count=3)
    for number in (1, 2, 3):
        instance(tmp_path, number, count=3)
    os.utime(tmp_path / "instance_1" / "journal.jsonl", (run.process.began - 60,) * 2)
    assert [each.number for each in instances.others(tmp_path, run)] == [2]
    main(["report", str(tmp_path)])
    assert "2 of 3 instances have their records here" in words(tmp_path / "report.html")


def test_one_that_ends_writes_the_page_of_all_anew(tmp_path):
    instance(tmp_path, 0)
    instance(tmp_path, 1)
    files.write_first(tmp_path / "instance_1")
    assert "instance_1/report.html" in (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    files.write_first(tmp_path)  # is no other instance
    assert not (tmp_path / "report.html").exists()


def test_two_that_end_at_the_same_moment_are_both_on_the_page(tmp_path, monkeypatch):
    instance(tmp_path, 0)
    instance(tmp_path, 1, end="")
    has_read, writes = threading.Event(), files.write_text

    def slowly(path, text):
        has_read.set()  # and instance 1 ends now
        time.sleep(0.2)
        writes(path, text)

    monkeypatch.setattr(files, "write_text", slowly)
    first = threading.Thread(
        target=files.write, args=(tmp_path, read_run(tmp_path), read_journal(tmp_path))
    )
    first.start()
    has_read.wait(60)
    instance(tmp_path, 1)
    monkeypatch.setattr(files, "write_text", writes)
    files.write_first(tmp_path / "instance_1")
    first.join()
    assert "was killed" not in words(tmp_path / "report.html")


def test_nobody_waits_for_ever_for_a_folder(tmp_path):
    with folder_lock(tmp_path) as held, folder_lock(tmp_path, waits_s=0.05) as again:
        assert (held, again) == (True, False)
    with folder_lock(tmp_path, waits_s=0) as later, folder_lock(tmp_path / "missing") as nowhere:
        assert (later, nowhere) == (True, False)


def test_the_page_of_another_one_leads_to_that_of_all(tmp_path):
    instance(tmp_path, 0)
    instance(tmp_path, 1)
    assert main(["report", str(tmp_path / "instance_1")]) == 0
    text = (tmp_path / "instance_1" / "report.html").read_text()
    assert 'The <a href="../report.html">page of instance 0</a> shows all 2.' in text


def test_a_page_elsewhere_still_leads_to_the_others(tmp_path):
    instance(tmp_path, 0)
    instance(tmp_path, 1)
    other = tmp_path / "pages"
    other.mkdir()
    assert main(["report", str(tmp_path), "-o", str(other / "page.html")]) == 0
    assert 'href="../instance_1/report.html"' in (other / "page.html").read_text()


@pytest.mark.parametrize("name", ["instance_1", "instance_x", "net"])
def test_a_folder_that_is_inside_no_run_is_a_run_of_its_own(name, tmp_path):
    assert instances.number_of(tmp_path / name) == 0
    assert instances.first_of(tmp_path / name) is None
