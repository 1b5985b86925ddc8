"""A kill while programs are compiled: no process stays, no file is torn, and the next one works."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from abele.compile.executable import Executable
from conftest import usable
from helpers import killed_workers
from helpers.killed_workers import MOMENTS
from helpers.warm_python import python

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(str(ROOT / each) for each in ("src", "tests"))


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What is left of each kill."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "temporary").mkdir()
    done = subprocess.run(
        [python(), killed_workers.__file__, str(folder / "caches"), str(folder / "temporary")],
        env={**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list((folder / "temporary").glob("abele-*-*-*")), "a folder was left behind"
    assert not list((folder / "caches").rglob("*.bad"))
    return json.loads(done.stdout)


@pytest.mark.parametrize("victim", ["worker", "parent"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_leaves_nothing_behind(left, moment, victim):
    result = left[f"{victim} {moment}"]
    assert result["orphans"] == []
    assert not result["folder"]
    assert result["next"] == "works"
    said = ["the process that compiled was ended by SIGKILL"] if victim == "worker" else []
    assert result["outcome"] == said


def test_a_full_disk_is_a_failure_and_leaves_no_file(tmp_path, monkeypatch):
    from abele.compile import jobs, worker

    def full(self, file):
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Executable, "_write", full)
    monkeypatch.setattr(worker, "_keep_temporary_files_in", lambda folder: None)
    (tmp_path / "job").mkdir()
    jobs.write(tmp_path / "job", killed_workers.job_of(tmp_path / "cache"))
    worker.do(tmp_path / "job")
    result = jobs.read_result(tmp_path / "job")
    assert result.problem == "the executable could not be written"
    assert "No space left on device" in result.warnings[0]
    assert not list((tmp_path / "cache").iterdir())


PROGRAM = """
import sys, poptorch
from helpers.wrapping import options, rows, scorer, sgd
model = scorer()
wrapped = poptorch.trainingModel(model, options(enableExecutableCaching=sys.argv[1]), sgd(model))
for step in range(int(sys.argv[2])):
    wrapped(*rows(4, step))
print(wrapped.build_record.running.sentence())
"""


def processes_with(word):
    """Processes whose command has a word in it, but for this one."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in command and path.name != str(os.getpid()):
            yield command


@pytest.mark.compiler
@pytest.mark.thorough
def test_kills_at_any_time_of_a_real_compile(tmp_path):
    usable("cpu")
    (tmp_path / "temporary").mkdir()
    told = {"ABELE_TARGET": "cpu", "ABELE_START": "tiered", "TMPDIR": str(tmp_path / "temporary")}
    environment = {**os.environ, **told, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache")]
    for tenths in range(20, 100, 8):
        with subprocess.Popen([*command, "1000000"], env=environment) as running:
            time.sleep(tenths / 10)
            running.kill()
        until = time.monotonic() + 20
        while time.monotonic() < until and any(processes_with(str(tmp_path))):
            time.sleep(0.05)
        assert list(processes_with(str(tmp_path))) == []
    environment["ABELE_SWAP_AT"] = "2"
    done = subprocess.run(
        [*command, "4"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "compiled programs run since update 2, interpreted before\n"
    assert done.stderr == ""  # no cached file had to be set aside
    assert len(list((tmp_path / "temporary").glob("abele-*-*-*"))) == 0
