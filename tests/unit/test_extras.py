"""Commands name the extra that brings what they need and that is missing; metadata of extras."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from helpers.warm_python import python

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# None in sys.modules is what Python's import takes for "there is no such module".
RUN = """
import importlib, sys
missing, module, *sys.argv[1:] = sys.argv[1:]
for name in [each for each in sys.modules if each.partition(".")[0] == missing]:
    del sys.modules[name]
sys.modules[missing] = None
sys.exit(importlib.import_module(module).main())
"""


def run(missing, module, *arguments):
    command = [python(), "-c", RUN, missing, module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("missing", "module", "arguments", "said"),
    [
        (
            "libcst",
            "abele.__main__",
            ["port", "--scan", "a.py"],
            r"abele port needs the .*\[port\]",
        ),
        (
            "shtab",
            "abele.__main__",
            ["completion", "bash"],
            r"abele completion needs the .*\[completion\]",
        ),
        ("rich", "gctools.monitor", [], r"gc-monitor needs the .*\[monitor\].*or --json"),
    ],
)
def test_a_command_names_the_extra_that_is_missing(missing, module, arguments, said):
    done = run(missing, module, *arguments)
    assert re.fullmatch(f"{said}.*\n", done.stderr)
    assert f"needs the package {missing}, which is not installed" in done.stderr
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("missing", "module", "arguments"),
    [("libcst", "abele.__main__", ["report", "--help"]), ("rich", "gctools.monitor", ["--json"])],
)
def test_what_does_not_need_it_runs_without(missing, module, arguments):
    done = run(missing, module, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_one_command_needs_is_in_its_extra_alone():
    def names(requirements):
        return {re.match(r"[\w-]+", each)[0] for each in requirements}

    assert names(PROJECT["dependencies"]) == {"torch", "numpy", "tqdm", "filelock"}
    assert names(EXTRAS["port"]) == {"libcst"}
    assert "rich" in names(EXTRAS["monitor"])


def test_scripts_install_the_extras_that_tests_need():
    for name in ("scripts/test", "scripts/check", ".ci/run"):
        (extras,) = re.findall(r"^extras=(.*)$", (ROOT / name).read_text(), re.MULTILINE)
        assert {"port", "monitor", "test"} <= set(extras.split(",")) <= set(EXTRAS)
