"""What importing the package does to the process, its variables, and its distribution."""

import faulthandler
import importlib.metadata
import os
import signal
import subprocess
from pathlib import Path

import pytest

import poptorch
from helpers.warm_python import python
from poptorch._wrapper import distribution, process

SOURCE = Path(poptorch.__file__).parent.parent


def run(code, **variables):
    """Runs code in a fresh interpreter; returns the finished process."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("POP", "PVTI", "RDMAV"))
    }
    environment |= {"PYTHONPATH": str(SOURCE), **variables}
    return subprocess.run(
        [python(), "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_import_prepares_the_process():
    code = (
        "import poptorch, os, faulthandler, sys\n"
        "print(os.environ['RDMAV_FORK_SAFE'], faulthandler.is_enabled(), sys.excepthook.__name__)"
    )
    assert run(code).stdout.split() == ["1", "True", "log_uncaught"]


def test_the_users_choices_are_kept():
    code = (
        "import sys, os; mine = lambda *a: print('mine'); sys.excepthook = mine\n"
        "import poptorch; print(os.environ['RDMAV_FORK_SAFE'], sys.excepthook is mine)"
    )
    assert run(code, RDMAV_FORK_SAFE="0").stdout.split() == ["0", "True"]


def test_an_uncaught_exception_is_logged():
    done = run("import poptorch\nraise ValueError('not today')")
    assert done.returncode == 1
    assert "[poptorch::python] [critical] Traceback" in done.stderr
    assert done.stderr.count("ValueError: not today") == 1


_WRONG_BATCH = """
import poptorch, torch
options = poptorch.Options()
options.deviceIterations(4)
model = poptorch.inferenceModel(torch.nn.Linear(2, 1), options)
model(torch.ones(6, 2))
"""


def test_a_refused_call_shows_the_programs_lines_only(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_WRONG_BATCH)
    stderr = run(f"import runpy; runpy.run_path({str(script)!r})").stderr
    assert stderr.count("is not a multiple of 4") == 1
    assert "AbeleError" not in stderr
    assert "BatchError" not in stderr
    assert 'script.py", line 6' in stderr
    assert "executor.py" not in stderr
    assert stderr.rstrip().endswith("POPTORCH_LOG_LEVEL=DEBUG shows them.)")


def test_at_debug_level_a_refused_call_shows_all_frames(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_WRONG_BATCH)
    run_script = f"import runpy; runpy.run_path({str(script)!r})"
    stderr = run(run_script, POPTORCH_LOG_LEVEL="DEBUG").stderr
    assert "executor.py" in stderr
    assert "abele.errors.BatchError" in stderr


def test_a_defect_of_the_package_shows_where_it_is():
    stderr = run("import poptorch\npoptorch.Options().anchorTensor(1, 2, 3, 4, 5, 6)").stderr
    assert "TypeError" in stderr
    assert "Frames of" not in stderr


def test_the_output_of_a_failed_subprocess_is_logged_too():
    code = (
        "import poptorch, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'print(6 * 7); exit(3)'], check=True,"
        " capture_output=True)"
    )
    assert "stdout of the subprocess:\n42" in run(code).stderr


def test_an_exception_is_never_swallowed_by_a_silent_log():
    code = "import poptorch\npoptorch.setLogLevel('OFF')\nraise ValueError('heard')"
    done = run(code)
    assert "ValueError: heard" in done.stderr
    assert "critical" not in done.stderr


@pytest.mark.skipif(not hasattr(faulthandler, "register"), reason="no signals of this kind here")
def test_a_terminated_process_shows_where_it_was():
    code = (
        "import poptorch, os, signal\ndef busy():\n    os.kill(os.getpid(), signal.SIGTERM)\nbusy()"
    )
    done = run(code)
    assert done.returncode == -signal.SIGTERM
    assert "in busy" in done.stderr


def test_the_log_goes_where_the_environment_says(tmp_path):
    code = "import poptorch\npoptorch.logger.warning('careful')"
    assert "careful" in run(code, POPTORCH_LOG_DEST="stdout").stdout
    path = tmp_path / "poptorch.log"
    done = run(code, POPTORCH_LOG_DEST=str(path))
    assert "careful" not in done.stderr
    assert "careful" in path.read_text()


def test_an_unknown_level_is_an_error_at_import():
    done = run("import poptorch", POPTORCH_LOG_LEVEL="LOUD")
    assert done.returncode == 1
    assert "Unknown log level: LOUD" in done.stderr


@pytest.fixture
def reported(monkeypatch, caplog):
    """Checks the environment anew and returns what is logged."""
    monkeypatch.setattr(process, "_reported", set())

    def check():
        process.check()
        return caplog.text

    return check


@pytest.mark.parametrize("variable", process.VARIABLES, ids=lambda v: v.name)
def test_a_variable_without_effect_is_reported_once(variable, monkeypatch, reported, caplog):
    monkeypatch.setenv(variable.name, "1")
    text = reported()
    assert (f"{variable.name} has no effect here" in text) != variable.effect
    caplog.clear()
    assert reported() == ""


# -- the distribution ------------------------------------------------------------------------


def test_the_version_is_that_of_the_package():
    assert importlib.metadata.version("poptorch") == poptorch.__version__
    own = importlib.metadata.distribution("poptorch")
    assert own.metadata["Name"] == "poptorch"
    assert own.read_text("RECORD") is None


def test_other_names_are_not_claimed():
    finder = distribution.OwnFinder()
    other = finder.Context(name="popart")
    assert list(finder.find_distributions(other)) == []
    assert len(list(finder.find_distributions(finder.Context()))) == 1
    assert finder.find_spec("poptorch") is None


def test_all_distributions_can_be_listed():
    names = [one.metadata["Name"] for one in importlib.metadata.distributions()]
    assert names.count("poptorch") == 1
    assert "torch" in importlib.metadata.packages_distributions()


def test_announcing_again_changes_nothing():
    distribution.announce()
    names = [one.metadata["Name"] for one in importlib.metadata.distributions()]
    assert names.count("poptorch") == 1


def test_an_import_beside_a_distribution_of_that_name_warns_once(tmp_path):
    folder = tmp_path / "poptorch-3.3.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: poptorch\nVersion: 3.3.0\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport poptorch; print('runs')"
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True)
    assert done.stdout == "runs\n"
    words = (
        "<string>:2: OtherPoptorchWarning: Programs run on abele's package 'poptorch', but another "
    )
    assert done.stderr.count("OtherPoptorchWarning") == 1
    assert f"{words}distribution called poptorch 3.3.0 is installed" in done.stderr
