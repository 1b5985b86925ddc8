"""A second process starts from the executable of the first one, without any compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from abele import get_target
from helpers import cached_program
from helpers.warm_python import python

pytestmark = pytest.mark.compiler
PROGRAM = Path(cached_program.__file__)


def _run(*arguments, compiler=True, **variables):
    """Runs the program in a process of its own; without compiler it finds no program at all."""
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "ABELE_TARGET": "cpu", "PYTHONPATH": path, **variables}
    if not compiler:
        environment |= {"PATH": "", "CXX": ""}
    run = [python(), "-W", "ignore", str(PROGRAM), *arguments]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A cache folder and what the process said that filled it."""
    reason = get_target("cpu").cannot_compile()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("executables")
    done = _run("--cache", str(folder))
    assert done["cache"] == "miss"
    return folder, done


def test_the_second_process_needs_no_compiler_and_computes_the_same_bits(compiled):
    folder, first = compiled
    second = _run("--cache", str(folder), compiler=False)
    assert second == first | {"cache": "hit"}


def test_the_environment_can_name_the_folder(compiled):
    folder, first = compiled
    done = _run(compiler=False, POPTORCH_CACHE_DIR=str(folder))
    assert (done["cache"], done["losses"]) == ("hit", first["losses"])


def test_a_changed_learning_rate_is_the_same_executable(compiled):
    folder, first = compiled
    done = _run("--cache", str(folder), "--rate", "0.5", compiler=False)
    assert (done["cache"], done["executable"]) == ("hit", first["executable"])
    assert done["weights"] != first["weights"]
