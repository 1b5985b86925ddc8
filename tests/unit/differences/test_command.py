"""``abele diff``: a script, two settings, and the exit status."""

import json
from pathlib import Path

import pytest

from abele.__main__ import main
from abele.targets import ENVIRONMENT

SCRIPT = """
import sys
import torch
import poptorch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x) * float(sys.argv[1])
        return torch.nn.functional.l1_loss(y, torch.zeros(2, 4))

torch.manual_seed(3)
model = Model()
options = poptorch.Options().showCompilationProgressBar(False)
print("before")
if sys.argv[1] == "0":
    poptorch.inferenceModel(model, options)(torch.ones(2, 4))
elif sys.argv[1] != "nothing":
    trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    trainer(torch.ones(2, 4))
    raise RuntimeError("the first step is not run")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_settings_that_agree_exit_with_0(script, capsys):
    assert main(["diff", script, "reference", "float64", "--", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("reference and float64 are equal but for rounding.")
    assert "before" in printed.err  # what the script prints is not the answer


def test_settings_that_part_exit_with_1_and_name_the_line(script, capsys):
    assert main(["diff", script, "float32", "half", "--", "1e6"]) == 1
    assert "train.py:12 in forward" in capsys.readouterr().out.splitlines()[0]


def test_json_has_everything(script, capsys):
    assert main(["diff", script, "reference", "half", "--json", "--", "1e6"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["blamed"]["operation"]["module"] == ""
    assert data["blamed"]["operation"]["phase"] == "forward"
    assert data["names"] == ["reference", "half"]


@pytest.mark.parametrize("command", ["diff", "fit"])
def test_the_record_of_a_run_of_the_script_stays(command, script, tmp_path):
    folder = tmp_path / "profile/training"
    options = f'options.enableProfiling("{folder.parent}"); print("before")'
    Path(script).write_text(SCRIPT.replace('print("before")', options))
    folder.mkdir(parents=True)
    for name in ("run.json", "journal.jsonl", "report.html"):
        (folder / name).write_text("of a run")
    settings = ["reference", "float64"] if command == "diff" else []
    assert main([command, script, *settings, "--", "2"]) == 0
    assert {each.read_text() for each in folder.iterdir()} == {"of a run"}
    assert [each.name for each in folder.parent.iterdir()] == ["training"]


def test_a_script_that_does_not_train_is_compared_by_its_first_call(script, capsys):
    assert main(["diff", script, "reference", "float64", "--", "0"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py", "reference", "half"], "abele diff: There is no file 'missing.py'"),
        (["SCRIPT", "reference", "fp8"], "'fp8' is no way to run a program"),
        (["SCRIPT", "reference", "half", "--", "nothing"], "ended without running a model"),
    ],
)
def test_what_cannot_be_said_exits_with_2(script, arguments, message, capsys):
    arguments = [script if each == "SCRIPT" else each for each in arguments]
    assert main(["diff", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_environment_is_as_before(script, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "null")
    assert main(["diff", script, "reference", "float64", "--", "2"]) == 0
    import os

    assert os.environ[ENVIRONMENT] == "null"
