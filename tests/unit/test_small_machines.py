"""The README's program where home, temporary folder, compiler or AVX2 are missing.

It works, says once what is lost, and leaves nothing in the current folder.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from abele import StepConfig, processor, systems
from abele.compilation import compiling
from abele.kernels import build as kernels
from abele.targets import get_target
from helpers import warm_python
from helpers.fakes import Keeping
from helpers.models import MODELS
from helpers.runs import captured, rule_for

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text().split("```python\n")[1].partition("```")[0]
NO_HOME = """
import pwd
def unknown(user):
    raise KeyError(user)
pwd.getpwuid = unknown
"""
# Refuses files in all folders for temporary files, as tempfile knows them.
NO_TEMPORARY = """
import os, sys, tempfile
HERE, tempfile.tempdir = os.getcwd(), None
def refuse(event, arguments):
    path = str(arguments[0]) if arguments else ""
    writes = event == "os.mkdir" or (event == "open" and arguments[2] & (os.O_CREAT | os.O_WRONLY))
    usual = ("/tmp/", "/var/tmp/", "/usr/tmp/")
    if writes and path.startswith(usual) and not path.startswith(HERE):
        raise OSError(NUMBER, os.strerror(NUMBER), path)
sys.addaudithook(refuse)
"""
WARNED = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec(README)
print(json.dumps([str(each.message) for each in caught]))
""".replace("README", repr(README))
FAILING = "#!/bin/sh\necho 'fatal: {}' >&2\nexit 1\n"


def run(folder, prelude="", **variables):
    """The program's last line and its warnings, run in an empty folder that stays empty."""
    here = folder / "current"
    here.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ABELE_", "XDG_")) and name not in ("HOME", "TMPDIR", "CXX")
    }
    done = subprocess.run(
        [warm_python.python(), "-c", prelude + WARNED],
        env={**kept, "PYTHONPATH": str(ROOT / "src"), **variables},
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, loss, warned = done.stdout.splitlines()
    assert loss.startswith("loss 10.60 -> 0.0020 on target")
    assert list(here.iterdir()) == []
    return json.loads(warned)


def test_no_home_costs_the_kept_kernels(tmp_path):
    (said,) = run(tmp_path, NO_HOME, CXX="/missing", ABELE_START="interpret")
    assert "not kept for the next process" in said
    assert "There is no home folder for them: set XDG_CACHE_HOME" in said


def test_a_home_that_cannot_be_written_costs_the_kept_kernels(tmp_path):
    (tmp_path / "file").touch()
    (said,) = run(tmp_path, HOME=str(tmp_path / "file"), ABELE_START="interpret")
    assert f"{tmp_path}/file/.cache/abele cannot be written: set XDG_CACHE_HOME" in said


@pytest.mark.parametrize(
    "number",
    [pytest.param("28", id="full"), pytest.param("30", id="read-only", marks=pytest.mark.long)],
)
def test_without_temporary_space_steps_stay_interpreted(tmp_path, number):
    home = tmp_path / "current" / ".." / "home"
    (tmp_path / "home").mkdir()
    # Kernels that this machine has compiled are there, so that the program is what fails.
    (tmp_path / "home" / ".cache").symlink_to(kernels.cache_folder().parent)
    prelude = NO_TEMPORARY.replace("NUMBER", number)
    (said,) = run(tmp_path, prelude, HOME=str(home), ABELE_START="wait")
    assert "Running on the slower 'reference' target" in said
    assert re.search(
        "Compiling needs a temporary folder .* that can be written and have free", said
    )


def test_neither_home_nor_temporary_space_is_needed(tmp_path):
    prelude = NO_HOME + NO_TEMPORARY.replace("NUMBER", "30")
    lost, interpreted = run(tmp_path, prelude, ABELE_START="wait")
    assert "There is no home folder for them" in lost
    assert "Running on the slower 'reference' target" in interpreted
    assert re.search("Compiling needs a temporary folder .* that can be written", interpreted)


def test_no_compiler_is_said_once(tmp_path):
    (said,) = run(tmp_path, HOME=str(tmp_path), CXX="/missing/g++")
    assert "no C++ compiler was found (looked for /missing/g++ on PATH)" in said


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("No space left on device", "that can be written and have free space."),
        (
            "no such header",
            r"Set CXX to another C\+\+ compiler \(g\+\+ 11 or clang\+\+ 14, or later\)",
        ),
    ],
)
def test_the_compilers_output_goes_to_temporary_files(tmp_path, output, advice):
    compiler, space = tmp_path / "g++", tmp_path / "space"
    compiler.write_text(FAILING.format(output))
    compiler.chmod(0o755)
    space.mkdir()
    reset = "import tempfile\ntempfile.tempdir = None\n"
    places = {"HOME": str(tmp_path), "TMPDIR": str(space), "CXX": str(compiler)}
    (said,) = run(tmp_path, reset, ABELE_START="wait", **places)
    assert re.search(advice, said)
    (log,) = space.glob("abele-compiler-*.log")
    assert str(log) in said
    assert output in log.read_text()


def test_the_current_folder_is_none_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # as tempfile does if it finds no other
    monkeypatch.delenv("TMPDIR", raising=False)
    assert systems.temporary_folder() == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="no temporary folder can be written"):
        systems.temporary_folder()
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # somebody asked for it
    assert systems.temporary_folder() == str(tmp_path)


# -- processors ------------------------------------------------------------------------------


@pytest.fixture
def processor_with(tmp_path, monkeypatch):
    """Makes this machine's processor one with other instructions."""

    def become(flags):
        (tmp_path / "cpuinfo").write_text(f"model name\t: Xeon X5570\nflags\t\t: {flags}\n")
        processor._described.cache_clear()

    monkeypatch.setattr(processor, "_DESCRIPTION", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    yield become
    processor._described.cache_clear()


def test_a_processor_without_avx2_is_slow(processor_with):
    processor_with("fpu sse sse2 sse4_2 avx")
    reason = r"this processor \(Xeon X5570\) has no AVX2"
    assert re.match(reason, get_target("cpu").why_slow() or "")
    processor_with("fpu avx avx2 fma")
    assert get_target("cpu").why_slow() is None


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_other_processors_are_not_said_to_be_slow(processor_with, machine, monkeypatch):
    processor_with("fpu")
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert get_target("cpu").why_slow() is None


def test_slow_programs_are_compiled_and_that_is_said_once(monkeypatch):
    target = Keeping()
    monkeypatch.setattr(target, "why_slow", lambda: "this processor has no AVX2")
    compiling._warn_slow.cache_clear()
    module = MODELS["dense"].fresh()
    batch = MODELS["dense"].batch()
    programs = captured(module, batch, StepConfig(), rule_for(module)).programs
    parts = {"lowerings": {each.name: target.lowerings[0].name for each in programs}}
    said = r"run, but slowly: this processor has no AVX2\."
    with pytest.warns(RuntimeWarning, match=said):
        made = compiling.compile_programs(target, programs, parts)
    assert made.target is target
    compiling.compile_programs(target, programs, parts)  # a second warning would be an error
    compiling._warn_slow.cache_clear()


def test_a_cache_without_any_folder_finds_and_keeps_nothing(monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(systems, "temporary_folder", lambda: os.devnull)
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        folder = kernels.cache_folder.__wrapped__()
    assert not folder.exists()
    with pytest.raises(NotADirectoryError):
        folder.mkdir(parents=True)


def test_the_memory_of_this_machine_is_known():
    assert (systems.memory() or 0) > torch.zeros(1).nbytes
