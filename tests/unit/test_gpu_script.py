"""`scripts/gpu` without a GPU: what it refuses, and what it runs where one seems to be."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from helpers.warm_python import python

ROOT = Path(__file__).parents[2]
PYTHON = r"""#!/bin/sh
echo "$*" >>"{folder}/calls"
case "$*" in
-m\ pytest*) exit {tests} ;;
-m\ benchmarks.gpu_p*) ;;
-m\ benchmarks*) sleep {table} ;;
*) echo "AssertionError: no GPU to speak of"; exit {check} ;;
esac
"""


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bin").mkdir()
    return tmp_path


def seems_to_have_a_gpu(folder):
    program(folder / "bin" / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: pretended'\n")


def run(folder, *arguments, python="", script=ROOT / "scripts" / "gpu"):
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [script, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "ABELE_GPU_PYTHON": str(python)},
    )


def test_without_a_gpu_it_says_so_in_a_sentence(folder):
    program(folder / "bin" / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    done = run(folder, folder / "out")
    assert done.returncode == 3
    assert done.stderr == (
        "scripts/gpu: there is no NVIDIA GPU here (nvidia-smi lists none); nothing was run.\n"
    )
    assert not (folder / "out").exists()


def test_it_needs_a_folder(folder):
    done = run(folder)
    assert (done.returncode, done.stderr) == (2, "usage: scripts/gpu FOLDER\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_torch_that_cannot_use_the_gpu_says_why(folder):
    seems_to_have_a_gpu(folder)
    done = run(folder, folder / "out", python=python())
    assert done.returncode == 3
    assert "target cuda cannot run with" in done.stderr
    built = torch.version.cuda is not None
    assert ("no CUDA device was found" in done.stderr) == built
    assert ("this torch is built without CUDA" in done.stderr) != built


@pytest.mark.parametrize(("tests", "status"), [(0, 0), (1, 1)])
def test_tests_profile_and_table_run_and_decide_the_status(folder, tests, status):
    seems_to_have_a_gpu(folder)
    text = PYTHON.format(folder=folder, tests=tests, table=0, check=0)
    python = program(folder / "python", text)
    done = run(folder, folder / "out", python=python)
    assert done.returncode == status, done.stderr
    lines = (folder / "out" / "summary.txt").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "check: status 0",
        f"tests: status {tests}",
        "products: status 0",
        "profile: status 0",
        "table: status 0",
        "threads: status 0",
    ]
    calls = (folder / "calls").read_text()
    assert "-m pytest -q -p no:cacheprovider -k cuda or gpu tests/conformance" in calls
    assert "-m benchmarks.gpu_products --out" in calls
    assert "-m benchmarks.gpu_profile --rows a21,mlp,gpt --out" in calls
    assert "--device cuda --threads 4 --once --rows introduction-16,gpt" in calls
    assert "--set threads --ways eager,abele" in calls
    assert calls.count(f"--out {folder / 'out'}") == 4


def test_a_check_that_fails_ends_it(folder):
    seems_to_have_a_gpu(folder)
    text = PYTHON.format(folder=folder, tests=0, table=0, check=1)
    done = run(folder, folder / "out", python=program(folder / "python", text))
    assert done.returncode == 3
    assert done.stderr.endswith("AssertionError: no GPU to speak of\n")
    assert (folder / "calls").read_text().count("import get_target") == 1


def run_changed(folder, old, new, python):
    """Runs the script with a text of it replaced."""
    (folder / "scripts").mkdir()
    text = (ROOT / "scripts" / "gpu").read_text().replace(old, new)
    script = program(folder / "scripts" / "gpu", text)
    return run(folder, folder / "out", python=program(folder / "python", python), script=script)


def test_a_stage_is_stopped_at_its_limit(folder):
    seems_to_have_a_gpu(folder)
    text = PYTHON.format(folder=folder, tests=0, table=60, check=0)
    limits = "table_s=220 threads_s=120"
    done = run_changed(folder, limits, "table_s=1 threads_s=1", text)
    assert done.returncode == 1
    assert "table: stopped at its limit of 1 s" in done.stdout


def test_a_check_that_takes_too_long_says_so(folder):
    seems_to_have_a_gpu(folder)
    done = run_changed(folder, "$((check_s + setup_s))", "1", "#!/bin/sh\nexec sleep 60\n")
    assert done.returncode == 3
    assert re.search(r": check: stopped at its limit of 1 s, \d+ s\n$", done.stderr)


def test_all_limits_but_the_setups_are_less_than_ten_minutes():
    text = (ROOT / "scripts" / "gpu").read_text()
    limits = dict(
        word.split("=")
        for word in text.split()
        if word.endswith(tuple("0123456789")) and "_s=" in word
    )
    assert len(limits) == 7
    assert sum(map(int, limits.values())) - int(limits["setup_s"]) + 6 * 5 < 600
