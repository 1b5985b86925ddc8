"""Environments with other versions of torch: scripts/torch_environment and what uses it."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(*command, **variables):
    return subprocess.run(
        [str(each) for each in command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "scripts/torch_environment VERSION"),
        ([], 2, "scripts/torch_environment VERSION"),
        (["2.15.0", "2.14.1"], 2, "One version of torch, not 2.15.0 and 2.14.1."),
        (["2.15.0", "--python"], 2, "--python needs a value."),
        (["2.15.0", "--pyhton", "3.13"], 2, "knows no --pyhton."),
        (["2.15.0", "--python", "2.99", "--at", "/nowhere/env"], 2, "No Python 2.99 found"),
    ],
)
def test_an_environment_is_asked_for_in_words_that_it_knows(arguments, code, said):
    done = run(SCRIPTS / "torch_environment", *arguments)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "\nset -eu" not in done.stdout + done.stderr


def test_tests_run_in_the_environment_of_another_version(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "other/bin").mkdir(parents=True)
    (tmp_path / "constraints.txt").write_text("# pinned\ntorch==1.2.3\n")
    for name in ("test", "_setup"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    for path, text in (
        ("scripts/torch_environment", f'echo "$@" >>{tmp_path}/asked; echo {tmp_path}/other'),
        ("other/bin/python", f'echo "$@" >>{tmp_path}/ran'),
    ):
        (tmp_path / path).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / path).chmod(0o755)
    script = tmp_path / "scripts/test"
    for arguments in (["--torch", "2.15.0", "-k", "a b", "--python", "3.13"], ["--python", "3.12"]):
        done = run(script, *arguments)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text() == "2.15.0 --python 3.13\n1.2.3 --python 3.12\n"
    lines = (tmp_path / "ran").read_text().splitlines()
    assert lines[1].endswith("--no-loadscope-reorder -k a b")
    assert lines[3].endswith("--no-loadscope-reorder")
    assert not (tmp_path / ".venv").exists()
    assert "--torch needs a version." in run(script, "--torch").stderr


@pytest.mark.compiler
def test_a_library_of_cuda_is_stood_in_for(tmp_path):
    stubs = SCRIPTS / "torch_stubs.py"
    loaded = importlib.util.spec_from_file_location("torch_stubs", stubs)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    folder = tmp_path / "torch/lib"
    folder.mkdir(parents=True)
    real, user = folder / "libcuabele.so.13", folder / "libtorch_cuda.so"
    (tmp_path / "real.c").write_text("int cuabeleCount(int *n) { *n = 7; return 0; }\n")
    (tmp_path / "map").write_text("libcuabele.so.13 { global: cuabeleCount; };\n")
    (tmp_path / "user.c").write_text(
        "int cuabeleCount(int *); int own(void) { return 5; }\n"
        "int devices(void) { int n = 0; return cuabeleCount(&n) * 10 + n; }\n"
    )
    shared = ["cc", "-shared", "-fPIC"]
    version = [f"-Wl,--version-script={tmp_path}/map", f"-Wl,-soname,{real.name}"]
    for command in (
        [*shared, *version, "-o", real, tmp_path / "real.c"],
        [*shared, "-Wl,-rpath,$ORIGIN", "-o", user, tmp_path / "user.c", real],
    ):
        assert run(*command).returncode == 0
    real.unlink()
    with pytest.raises(OSError, match="libcuabele"):
        ctypes.CDLL(str(user))
    assert module.main([str(tmp_path / "torch")]) == 0
    assert ctypes.CDLL(str(user)).devices() == module.NO_DEVICE * 10
    assert module.main([str(tmp_path)]) == 1
