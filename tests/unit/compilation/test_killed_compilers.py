"""Kills at any time of a real compile: no process stays, no file is torn, and the next works."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import usable

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(str(ROOT / each) for each in ("src", "tests"))
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
