"""Every tool says what it needs where the packages of its extra are missing."""

import subprocess
from pathlib import Path

import pytest

from helpers.warm_python import python

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
EXTRAS = ["h5py", "tensorboard", "matplotlib", "pynvml", "sklearn", "PIL"]
# None in sys.modules is what Python's import takes for "there is no such module".
MISSING = """
import sys
missing = sys.argv[1].split(",")
for name in [each for each in sys.modules if each.partition(".")[0] in missing]:
    del sys.modules[name]
sys.modules.update(dict.fromkeys(missing))
"""
RUN = f"""{MISSING}
import importlib, runpy
target, sys.argv = sys.argv[2], sys.argv[2:]
if target.endswith(".py"):
    sys.path.insert(0, target.rpartition("/")[0])
    runpy.run_path(target, run_name="__main__")
else:
    sys.exit(importlib.import_module(target).main())
"""
AS_PROGRAM = f"""{MISSING}
import runpy
target, sys.argv = sys.argv[2], sys.argv[2:]
runpy.run_module(target, run_name="__main__", alter_sys=True)
"""


def run(target, *arguments, program=RUN):
    command = [python(), "-c", program, ",".join(EXTRAS), str(target), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("target", "arguments", "program"),
    [
        ("cosmictagger.__main__", ["--help"], RUN),
        ("cosmictagger.__main__", ["generate", "--help"], RUN),
        ("cosmictagger", ["--help"], AS_PROGRAM),
        ("cosmictagger.cli", ["run.id=x", "run.compute_mode=CPU"], AS_PROGRAM),
    ],
)
def test_cosmictagger_says_what_to_install(target, arguments, program):
    done = run(target, *arguments, program=program)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "needs the package" in done.stderr
    assert "pip install 'abele[cosmictagger]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "target",
    [
        "gctools.monitor",
        "gctools.info",
        "gctools.inventory",
        "popdist._run.cli",
        EXAMPLES / "samba_logreg.py",
    ],
    ids=str,
)
def test_other_tools_need_no_extra(target):
    done = run(target, "--help")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "usage" in done.stdout.lower()


def test_another_missing_module_keeps_its_traceback():
    done = subprocess.run(
        [python(), "-c", RUN, "abele", "cosmictagger.__main__", "--help"],
        capture_output=True,
        text=True,
    )
    assert "ModuleNotFoundError" in done.stderr
    assert "abele[cosmictagger]" not in done.stderr


def test_the_installed_command_is_the_one_that_says_so():
    pyproject = (EXAMPLES.parent / "pyproject.toml").read_text()
    assert 'cosmictagger = "cosmictagger.__main__:main"' in pyproject
