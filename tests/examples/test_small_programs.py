"""The short example programs, one per feature, run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = (
    "device_iterations",
    "efficient_data_loading",
    "gradient_accumulation",
    "half_precision",
    "observing_tensors",
    "pipelining",
    "replicas",
    "resume",
    "save_and_load",
)


@pytest.mark.parametrize("program", SMALL)
def test_a_reader_sees_it_at_a_glance(program):
    assert len((REPOSITORY / "examples" / f"{program}.py").read_text().splitlines()) < 60


def run(program, tmp_path, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "src"),
        "ABELE_TARGET": "reference",
        "MPLBACKEND": "agg",
    }
    command = [sys.executable, str(REPOSITORY / "examples" / program), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_efficient_data_loading(tmp_path):
    lines = run("efficient_data_loading.py", tmp_path, "--rows", "256").splitlines()
    assert lines[0].split() == ["loading", "rows/s"]
    assert len(lines) == 5
    assert all(float(line.split()[-1]) > 0 for line in lines[1:])


def test_resume(tmp_path):
    killed, compared = run("resume.py", tmp_path).splitlines()
    assert killed.startswith("killed; it had saved step-")
    assert compared == "equal weights: yes"
    assert list(tmp_path.iterdir()) == []
