"""Programs on macOS and Windows: imports are clean, all runs interpreted, what needs Linux says so.

Neither system is at hand: a process resembles one (``helpers/other_system.py``), once per system.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text().split("```python\n")[1].partition("```")[0]
PACKAGES = (
    *("abele", "abele.__main__", "poptorch", "popart", "popdist", "popdist.poptorch"),
    *("popdist.run", "sambaflow.samba", "cosmictagger", "cosmictagger.__main__", "gcipuinfo"),
    *("gctools.info", "gctools.inventory", "gctools.monitor"),
)
APPLES = """#!/bin/sh
case "$*" in
*-fopenmp*) echo "clang++: error: unsupported option '-fopenmp'" >&2; exit 1;;
*) echo "Apple clang version 17.0.0 (clang-1700.0.13.5)";;
esac
"""
# Prints what each part said, by its name.
PROGRAM = """
import contextlib, importlib, io, json, os, sys, warnings

said = {}


@contextlib.contextmanager
def part(name):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            yield
        except BaseException as problem:
            print(f"{type(problem).__name__}: {problem}", file=text)
    said[name] = text.getvalue()


with part("imports"):
    for name in PACKAGES:
        importlib.import_module(name)
with part("readme"), warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec(README)
said["warnings"] = [str(each.message) for each in caught]
with part("forced"):
    os.environ["ABELE_TARGET"] = "cpu"
    exec(README)
with part("accessor"):
    data = torch.utils.data.TensorDataset(torch.zeros(8, 1))
    poptorch.AsynchronousDataAccessor(poptorch.DataLoader(poptorch.Options(), data)).terminate()
os.environ["ABELE_TARGET"] = "reference"
os.environ["POPLAR_ENGINE_OPTIONS"] = json.dumps(
    {"autoReport.all": "true", "autoReport.directory": os.path.abspath("reports")}
)
with part("report"):
    exec(README)
    train.destroy()
    print(sorted(os.listdir(os.path.join("reports", *os.listdir("reports")))))
for name in ("gc-info", "gc-inventory", "gc-monitor"):
    with part(name):
        words = ["--ipu-count"] if name == "gc-info" else []
        importlib.import_module(name.replace("gc-", "gctools.")).main(words)
with part("gcipuinfo"):
    importlib.import_module("gcipuinfo").gcipuinfo()
with part("poprun"):
    print(importlib.import_module("popdist.run").main(["python", "a.py"]))
with part("poprun --version"):
    print(importlib.import_module("popdist.run").main(["--version"]))
with part("limit"):
    from abele.fit import limits
    print(limits.of_machine("cpu").size)
print(json.dumps(said), file=sys.__stdout__)
""".replace("PACKAGES", repr(PACKAGES)).replace("README", repr(README))


@pytest.fixture(scope="module", params=("darwin", "win32"))
def system(request):
    """The system's name, as people write it."""
    return {"darwin": "macOS", "win32": "Windows"}[request.param], request.param


@pytest.fixture(scope="module")
def said(system, tmp_path_factory):
    """What each part of the program said there."""
    folder = tmp_path_factory.mktemp(system[1])
    compiler = folder / "clang++"
    compiler.write_text(APPLES)
    compiler.chmod(0o755)
    file = ROOT / "tests/helpers/other_system.py"
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ABELE_")},
        **{"CXX": str(compiler), "PYTHONPATH": str(ROOT / "src"), "HOME": str(folder)},
        # Threads that wait for each other take a processor from another test.
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(file), system[1], PROGRAM],
        capture_output=True,
        text=True,
        env=variables,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_packages_are_imported_without_a_word(said):
    assert said["imports"] == ""


def test_the_program_trains_interpreted_and_one_line_says_why(said, system):
    assert "loss 10.60 -> 0.0020 on target reference" in said["readme"]
    (why,) = said["warnings"]
    if system[1] == "win32":
        assert "compiled programs need Linux, and this is Windows." in why
    else:  # which is newer than a compiler that is asked for
        assert re.search(r"clang\+\+ has no OpenMP, and without it no program", why)
        assert "macOS: brew install gcc" in why


def test_a_forced_target_says_why_it_cannot_be_used(said, system):
    reason = "has no OpenMP" if system[1] == "darwin" else "compiled programs need Linux"
    assert re.search(rf"Target 'cpu' cannot compile: .*{reason}", said["forced"])
    assert "AttributeError" not in said["forced"]


def test_reports_are_written(said):
    lines = [each for each in said["report"].splitlines() if not each.startswith("abele: ")]
    *_, loss, files = lines
    assert loss == "loss 10.60 -> 0.0020 on target reference"
    assert "report.html" in files


def test_parts_that_need_linux_say_so(said, system):
    assert f"by parts of Linux, and this is {system[0]}." in said["poprun"]
    assert said["poprun"].splitlines()[-1] == "2"
    tools = [f"gc-{name}: The gc tools read" for name in ("info", "inventory", "monitor")]
    for name, begins in zip(("gc-info", "gc-inventory", "gc-monitor"), tools, strict=True):
        assert said[name].startswith(begins)
        assert "of Linux, and this is another system.\nSystemExit: 1" in said[name]
    assert said["gcipuinfo"].startswith("UnsupportedSystemError: The gc tools read")


def test_what_needs_no_linux_works(said, system):
    assert re.match(r"poprun \d", said["poprun --version"])
    if system[1] == "win32":
        assert "AsynchronousDataAccessor shares memory" in said["accessor"]
        assert said["limit"].startswith("LimitError: This system does not say how much memory")
    else:
        assert said["accessor"] == ""
        assert int(said["limit"]) > 2**20
