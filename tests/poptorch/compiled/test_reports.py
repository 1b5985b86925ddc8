"""Reports of compiled models: when they are written, where, and that they tell the truth."""

import json

import pytest
import torch

import poptorch
from helpers.wrapping import inference, options, rows, scorer, sgd, trainer
from poptorch import profiling
from poptorch._report.execution import ExecutionTrace
from poptorch.options._engine import Report

ENGINE = "POPLAR_ENGINE_OPTIONS"


def reported(folder, name="training"):
    return json.loads((folder / name / "report.json").read_text())


def test_a_report_has_programs_memory_operators_and_times(tmp_path):
    model = scorer()
    opts = options(gradientAccumulation=2, enableProfiling=str(tmp_path))
    wrapped = poptorch.trainingModel(model, opts, sgd(model, momentum=0.9))
    wrapped.compile(*rows(8))
    result = reported(tmp_path)
    assert result["target"] == "reference"
    assert result["executable"] == wrapped.executable_hash
    assert result["memory"]["state"]["parameter"] == 4 * (3 * 4 + 3)
    assert result["memory"]["state"]["optimizer_state"] == 4 * (3 * 4 + 3)
    assert set(result["programs"]) == {"accumulate", "apply"}
    accumulate = result["programs"]["accumulate"]
    assert accumulate["operators"]["forward"]["aten.addmm.default"] == 1
    assert [slot["shape"] for slot in accumulate["outputs"]] == [[], [4, 3]]
    assert 0 < result["seconds"]["capture"] < result["seconds"]["total"]
    text = (tmp_path / "training" / "programs" / "apply.py.txt").read_text()
    assert text in wrapped.program_text()
    page = (tmp_path / "training" / "report.md").read_text()
    assert "2 micro-batches = 1 device iterations x 2 accumulated x 1 replicas" in page
    assert "| forward | `aten.addmm.default` | 1 |" in page
    assert "| optimizer state | 0.1 |" in page


def test_the_first_calls_are_traced(tmp_path):
    wrapped = trainer(scorer(), deviceIterations=3, enableProfiling=str(tmp_path))
    for _ in range(4):
        wrapped(*rows(6))
    events = json.loads((tmp_path / "training" / "steps.json").read_text())
    calls = [event for event in events if event.get("cat") == "call"]
    steps = [event for event in events if event.get("cat") == "step"]
    assert [call["name"] for call in calls] == ["call 1", "call 2"]
    assert len(steps) == 6
    for step, call in zip(steps, [calls[0]] * 3 + [calls[1]] * 3, strict=True):
        assert call["ts"] < step["ts"] < step["ts"] + step["dur"] < call["ts"] + call["dur"]


@pytest.mark.parametrize("report_first", [True, False])
def test_reports_and_events_and_times_do_not_depend_on_who_came_first(
    report_first, tmp_path, monkeypatch
):
    recorder = profiling.Recorder(str(tmp_path / "events"))
    monkeypatch.setattr(profiling, "_recorder", recorder)
    wrapped = trainer(scorer(), logCycleCount=True)
    wrapped.compile(*rows(4))
    session = wrapped._executable.session
    report = ExecutionTrace(wrapped._executable, Report(tmp_path / "net", graph=False, runs=3))
    (events,) = profiling.Channel("mine")._calls_as("call")
    observers = [report, events] if report_first else [events, report]
    for observer in observers:
        session.add_observer(observer)
    wrapped(*rows(4))
    assert wrapped.cycleCount() > 0
    session.remove_observer(observers[0])
    wrapped(*rows(4))
    assert wrapped.getPerfCounters()["output_complete"][0][0] == session.last_call.ended_ns / 1e9
    recorder.close()
    steps = json.loads((tmp_path / "net" / "steps.json").read_text())
    (file,) = (tmp_path / "events").iterdir()
    traced = [event for event in steps if event.get("cat") == "call"]
    channel = [event for event in json.loads(file.read_text()) if event.get("cat") == "mine"]
    assert (len(traced), len(channel)) == ((1, 2) if report_first else (2, 1))


def test_each_model_has_a_folder_of_its_name(tmp_path):
    wrapped = inference(lambda x: x + 1, enableProfiling=str(tmp_path))
    wrapped(torch.ones(1))
    named = inference(lambda x: x + 2, enableProfiling=str(tmp_path), modelName="validation")
    named(torch.ones(1))
    assert {path.name for path in tmp_path.iterdir()} == {"inference", "validation"}


def test_without_a_folder_the_present_one_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrapped = poptorch.inferenceModel(torch.nn.Linear(2, 2), options().enableProfiling())
    wrapped(torch.ones(1, 2))
    assert reported(tmp_path, "inference")["cache"] == "off"


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer(scorer())(*rows(4))
    assert list(tmp_path.iterdir()) == []


def test_the_environment_asks_for_a_report_and_wins(tmp_path, monkeypatch):
    asked = {"autoReport.all": "true", "autoReport.directory": str(tmp_path / "elsewhere")}
    monkeypatch.setenv(ENGINE, json.dumps(asked))
    trainer(scorer())(*rows(4))
    trainer(scorer(), enableProfiling=str(tmp_path / "here"), modelName="second")(*rows(4))
    assert reported(tmp_path / "elsewhere")["target"] == "reference"
    assert reported(tmp_path / "elsewhere", "second")["target"] == "reference"
    assert not (tmp_path / "here").exists()
    monkeypatch.setenv(ENGINE, '{"autoReport.all": "false"}')
    trainer(scorer(), enableProfiling=str(tmp_path / "here"))(*rows(4))
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ({"autoReport.outputExecutionProfile": "true"}, {"steps.json"}),
        ({"autoReport.outputGraphProfile": "true"}, {"report.md", "report.json", "programs"}),
        (
            {"autoReport.all": "true", "autoReport.outputExecutionProfile": "false"},
            {"report.md", "report.json", "programs"},
        ),
    ],
)
def test_parts_can_be_chosen(asked, written, tmp_path):
    opts = options()
    opts._Popart.setEngineOptions({"autoReport.directory": str(tmp_path), **asked})
    model = scorer()
    poptorch.trainingModel(model, opts, sgd(model))(*rows(4))
    always = {"run.json", "journal.jsonl", "executable"}
    always |= {"report.html", "trace.json", "speedscope.json"}
    assert {path.name for path in (tmp_path / "training").iterdir()} == written | always


def test_the_number_of_traced_calls_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv(ENGINE, '{"autoReport.executionProfileProgramRunCount": "3"}')
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path))
    for _ in range(4):
        wrapped(*rows(4))
    assert (tmp_path / "training" / "steps.json").read_text().count('"cat": "call"') == 3
    monkeypatch.setenv(ENGINE, '{"autoReport.executionProfileProgramRunCount": "many"}')
    with pytest.raises(poptorch.Error, match="must be a number of runs, found 'many'"):
        trainer(scorer(), enableProfiling=str(tmp_path))
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
    assert path.read_text() == wrapped.program_text()
    assert not caplog.records
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "1")
    inference(lambda x: x + 1)(torch.ones(1))
    assert "def forward(" in path.read_text()
    assert "no binary form" in caplog.text
