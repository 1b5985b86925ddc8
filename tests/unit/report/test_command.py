"""``abele report``: pages from the files of runs, and what cannot be read, in words."""

import dataclasses
import json
import os
import subprocess

import pytest

from abele.__main__ import main
from abele.report.journal import JournalWriter, window_of
from helpers.reported import run_of


@pytest.fixture
def folder(tmp_path):
    run_of("dense").write(tmp_path)
    writer = JournalWriter(tmp_path)
    writer.calls(window_of(0.1, (0.0, 0.0, 0.1, 0.0), 1.0))
    writer.close()
    return tmp_path


def test_a_page_is_made_in_the_folder_of_the_run(folder, capsys):
    assert main(["report", str(folder)]) == 0
    page = folder / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert "is running" in page.read_text()


def test_a_run_whose_process_is_gone_was_killed(folder, tmp_path):
    with subprocess.Popen(["sleep", "0"]) as gone:
        pass
    run = run_of("dense")
    process = dataclasses.replace(run.process, pid=gone.pid, since=1)
    dataclasses.replace(run, process=process).write(folder)
    assert main(["report", str(folder / "run.json"), "-o", str(tmp_path / "page.html")]) == 0
    assert "was killed" in (tmp_path / "page.html").read_text()


def test_of_another_machine_nobody_knows(folder):
    run = run_of("dense")
    elsewhere = dataclasses.replace(run.process, machine="elsewhere", pid=os.getpid())
    dataclasses.replace(run, process=elsewhere).write(folder)
    assert main(["report", str(folder)]) == 0
    assert "Nobody here can see" in (folder / "report.html").read_text()


@pytest.fixture
def other(folder):
    copy = folder / "other"
    copy.mkdir()
    for name in ("run.json", "journal.jsonl"):
        (copy / name).write_bytes((folder / name).read_bytes())
    return copy


def test_two_runs_are_compared(folder, other, capsys):
    assert main(["report", str(folder), "--compare", str(other)]) == 0
    assert capsys.readouterr().out == f"{folder / 'comparison.html'}\n"
    assert "are the same." in (folder / "comparison.html").read_text()


def test_two_runs_are_compared_as_text(folder, other, capsys):
    assert main(["report", str(folder), "--compare", str(other), "--text"]) == 0
    assert "are the same." in capsys.readouterr().out
    assert not (folder / "comparison.html").exists()
    assert main(["report", str(folder), "--compare", str(folder)]) == 1
    assert "are the same run. Give two runs" in capsys.readouterr().err


def test_what_cannot_be_read_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "There is no run in" in capsys.readouterr().err


def test_a_page_that_would_replace_a_folder_is_refused(folder, tmp_path, capsys):
    (tmp_path / "pages").mkdir()
    assert main(["report", str(folder), "-o", str(tmp_path / "pages")]) == 1
    assert "pages is a folder. Name the page, such as -o" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["other", "run.json"])
def test_the_other_run_of_a_comparison_is_named_where_it_cannot_be_read(name, folder, capsys):
    other = folder / "half"
    other.mkdir()
    if name == "run.json":
        (other / name).write_text((folder / name).read_text()[:500])
    assert main(["report", str(folder), "--compare", str(other)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("abele report: ")
    assert str(other) in err
    assert not (folder / "comparison.html").exists()


def test_without_a_run_the_command_says_how_it_is_called(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report"])
    assert ended.value.code == 2
    assert "usage: abele report" in capsys.readouterr().err


def test_of_a_folder_with_one_run_inside_that_is_the_run(folder, tmp_path, capsys):
    around = tmp_path / "profile"
    (around / "net").mkdir(parents=True)
    for name in ("run.json", "journal.jsonl"):
        (folder / name).rename(around / "net" / name)
    assert main(["report", str(around)]) == 0
    assert capsys.readouterr().out == f"{around / 'net' / 'report.html'}\n"


def test_a_file_of_the_same_name_that_is_no_record_does_not_hide_runs_inside(tmp_path, capsys):
    """As in the folder of a run of CosmicTagger, whose pages are two folders further in."""
    (tmp_path / "run.json").write_text('{"steps": 12}')
    (tmp_path / "compute" / "training").mkdir(parents=True)
    run_of("dense").write(tmp_path / "compute" / "training")
    assert main(["report", str(tmp_path)]) == 0
    page = tmp_path / "compute" / "training" / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    (tmp_path / "compute" / "inference").mkdir()
    run_of("dense").write(tmp_path / "compute" / "inference")
    assert main(["report", str(tmp_path)]) == 1
    inside = [tmp_path / "compute" / name for name in ("inference", "training")]
    assert f"There are runs in {inside[0]}, {inside[1]}." in capsys.readouterr().err


def test_of_a_folder_with_several_the_runs_are_named(tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run_of("dense").write(tmp_path / name)
    assert main(["report", str(tmp_path)]) == 1
    assert f"There are runs in {tmp_path / 'one'}, {tmp_path / 'two'}." in capsys.readouterr().err


def test_a_page_is_printed_as_text(folder, capsys):
    assert main(["report", str(folder), "--text"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "net"
    assert "What ran where" in lines
    assert "<" not in "".join(lines[:10])
    assert not (folder / "report.html").exists()


def test_a_run_is_printed_as_json_and_no_page_is_written(folder, capsys):
    assert main(["report", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["run"] == json.loads((folder / "run.json").read_text())
    assert said["status"]["state"] == "is running"
    assert said["journal"]["windows"][0]["loss"] == 1.0
    assert said["steady"]["computed"] == pytest.approx(0.1)
    assert not (folder / "report.html").exists()


def test_a_run_without_calls_has_no_steady_times(tmp_path, capsys):
    run_of("dense").write(tmp_path)
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steady"] is None


def test_two_runs_are_compared_as_json(folder, other, capsys):
    assert main(["report", str(folder), "--compare", str(other), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["names"] == [str(folder), str(other)]
    assert not said["options"]
    assert not (folder / "comparison.html").exists()
