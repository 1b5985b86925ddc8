"""The short example programs, one per feature, run as a user runs them."""

import os
import runpy
import subprocess
from pathlib import Path

import pytest

from helpers.warm_python import python

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
SMALL = (
    "device_iterations",
    "distributed",
    "efficient_data_loading",
    "gradient_accumulation",
    "half_precision",
    "observing_tensors",
    "pipelining",
    "replicas",
    "resume",
    "save_and_load",
)


@pytest.mark.parametrize("program", sorted({*SMALL} - {"half_precision"}))
def test_help_says_what_it_shows_and_runs_nothing(program, monkeypatch, capsys, tmp_path):
    # Not half_precision: it imports scikit-learn, which sets environment variables for good.
    if program == "observing_tensors":
        pytest.importorskip("matplotlib", reason="optional extra: pip install abele[demo]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [program, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="__main__")
    assert left.value.code == 0
    usage, _, description = capsys.readouterr().out.partition("\n\n")
    assert usage.startswith("usage:")
    assert len(description.splitlines()[0]) > 20
    assert list(tmp_path.iterdir()) == []


def run(program, tmp_path, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "src"),
        "ABELE_TARGET": "reference",
        "MPLBACKEND": "agg",
    }
    file = [] if program is None else [EXAMPLES / program]
    command = [python(), *map(str, [*file, *arguments])]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_efficient_data_loading(tmp_path):
    lines = run("efficient_data_loading.py", tmp_path, "--rows", "64").splitlines()
    assert lines[0].split() == ["loading", "rows/s"]
    assert len(lines) == 5
    assert all(float(line.split()[-1]) > 0 for line in lines[1:])


def test_distributed(tmp_path):
    (alone,) = run("distributed.py", tmp_path).splitlines()
    assert alone.startswith("instance 0 of 1: replicas 0 to 3, 64 of 64 rows, 0 exchange")
    options = ["-m", "popdist.run", "--num-instances", "2", "--num-replicas", "4"]
    told = run(None, tmp_path, *options, python(), EXAMPLES / "distributed.py")
    first, second = sorted(told.splitlines())
    assert "instance 0 of 2: replicas 0 to 1, 32 of 64 rows, 20 exchanges" in first
    assert "instance 1 of 2: replicas 2 to 3, 32 of 64 rows, 20 exchanges" in second
    weights = [line.partition("weights ")[2] for line in (first, second)]
    assert weights[0] == weights[1] != ""
    sums = [float(line.rpartition("(")[2].strip(")")) for line in (alone, first)]
    assert abs(sums[0] - sums[1]) < 1e-4


@pytest.mark.long
def test_resume(tmp_path):
    killed, compared = run("resume.py", tmp_path).splitlines()
    assert killed.startswith("killed; it had saved step-")
    assert compared == "equal weights: yes"
    assert list(tmp_path.iterdir()) == []
