"""Reports of compiled models: when they are written, where, and that they tell the truth."""

import json
import os
import subprocess
import sys

import pytest
import torch

import poptorch
from abele.report.recorder import ReportWarning
from helpers.wrapping import inference, options, rows, scorer, sgd, trainer

ENGINE = "POPLAR_ENGINE_OPTIONS"


def reported(folder, name="training"):
    return json.loads((folder / name / "run.json").read_text(encoding="utf-8"))


def test_each_model_has_a_folder_of_its_name(tmp_path):
    wrapped = inference(lambda x: x + 1, enableProfiling=str(tmp_path))
    wrapped(torch.ones(1))
    named = inference(lambda x: x + 2, enableProfiling=str(tmp_path), modelName="validation")
    named(torch.ones(1))
    assert {path.name for path in tmp_path.iterdir()} == {"inference", "validation"}


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer(scorer())(*rows(4))
    assert list(tmp_path.iterdir()) == []


def test_the_environment_asks_for_a_report_and_wins(tmp_path, monkeypatch):
    asked = {"autoReport.all": "true", "autoReport.directory": str(tmp_path / "elsewhere")}
    monkeypatch.setenv(ENGINE, json.dumps(asked))
    trainer(scorer())(*rows(4))
    trainer(scorer(), enableProfiling=str(tmp_path / "here"), modelName="second")(*rows(4))
    assert reported(tmp_path / "elsewhere")["build"]["target"] == "reference"
    assert reported(tmp_path / "elsewhere", "second")["build"]["target"] == "reference"
    assert not (tmp_path / "here").exists()
    monkeypatch.setenv(ENGINE, '{"autoReport.all": "false"}')
    trainer(scorer(), enableProfiling=str(tmp_path / "here"))(*rows(4))
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("asked", "timed"),
    [
        ({"autoReport.outputExecutionProfile": "true"}, True),
        ({"autoReport.outputGraphProfile": "true"}, False),
        ({"autoReport.all": "true", "autoReport.outputExecutionProfile": "false"}, False),
    ],
)
def test_timing_of_operators_can_be_chosen(asked, timed, tmp_path):
    opts = options()
    opts._Popart.setEngineOptions({"autoReport.directory": str(tmp_path), **asked})
    model = scorer()
    wrapped = poptorch.trainingModel(model, opts, sgd(model))
    wrapped(*rows(4))
    wrapped.destroy()
    files = {path.name for path in (tmp_path / "training").iterdir()}
    assert files == {"run.json", "journal.jsonl", "report.html"}
    (program,) = reported(tmp_path)["programs"]
    assert (program["timing"] is not None) is timed


def test_a_folder_that_is_no_path_is_refused_when_wrapping(tmp_path, monkeypatch):
    monkeypatch.setenv(ENGINE, '{"autoReport.directory": 3}')
    with pytest.raises(poptorch.Error, match=r"autoReport\.directory must be a path, found 3"):
        trainer(scorer(), enableProfiling=str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[1]", "autoReport.all=true"])
def test_engine_options_that_cannot_be_read_are_refused_when_wrapping(text, monkeypatch):
    monkeypatch.setenv(ENGINE, text)
    with pytest.raises(poptorch.Error, match=r"POPLAR_ENGINE_OPTIONS=.* cannot be read"):
        trainer(scorer())


def test_programs_are_exported_as_text(tmp_path, monkeypatch, caplog):
    path = tmp_path / "new" / "graph.txt"
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(path))
    wrapped = trainer(scorer(), gradientAccumulation=2)
    wrapped.compile(*rows(4))
    assert path.read_text(encoding="utf-8") == wrapped.program_text()
    assert not caplog.records
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "1")
    inference(lambda x: x + 1)(torch.ones(1))
    assert "def forward(" in path.read_text(encoding="utf-8")
    assert "no binary form" in caplog.text


_IN_OTHER_SCRIPTS = """
import sys
import torch
import poptorch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("\\u0441\\u043b\\u043e\\u0439", torch.nn.Linear(3, 2))
        self.add_module("caf\\udce9", torch.nn.Linear(2, 2))
    def forward(self, x):
        for each in self.children():
            x = each(x)
        return x, poptorch.identity_loss(x.sum(), "none")
for name in sys.argv[2:]:
    options = poptorch.Options().showCompilationProgressBar(False).enableProfiling(sys.argv[1])
    options.modelName(name)
    model = Net()
    trainer = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer(torch.ones(1, 3))
raise RuntimeError("\\u0441\\u043b\\u043e\\u0439 caf\\udce9")
"""


def test_names_and_messages_of_any_script_are_written_in_any_locale(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(_IN_OTHER_SCRIPTS, encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    variables = os.environ | ascii_only | {"ABELE_TARGET": "reference", "OMP_NUM_THREADS": "1"}
    names = "net", "caf\u00e9"
    command = [sys.executable, script, tmp_path / "profile", *names]
    done = subprocess.run(command, env=variables, capture_output=True, check=False)
    assert b"RuntimeError: \\u0441\\u043b\\u043e\\u0439 caf\\udce9" in done.stderr
    assert b"Warning" not in done.stderr, done.stderr
    page = (tmp_path / "profile" / names[-1] / "report.html").read_text(encoding="utf-8")
    assert "\u0441\u043b\u043e\u0439 caf\\udce9" in page
    for name in names:
        (program, *_) = reported(tmp_path / "profile", name)["programs"]
        modules = {each["module"] for each in program["operators"]}
        assert {"\u0441\u043b\u043e\u0439", "caf\udce9"} <= modules


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path / "file"))
    with pytest.warns(ReportWarning, match="cannot be written.*Not a directory"):
        loss = wrapped(*rows(4))[1]
    assert torch.isfinite(loss).all()
    wrapped.destroy()  # a second warning would be an error
