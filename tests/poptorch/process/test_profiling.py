"""Trace channels: nothing without PVTI_OPTIONS, Chrome traces with it."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from helpers.warm_python import python
from poptorch import profiling

SOURCES = str(Path(__file__).resolve().parents[3] / "src")

PROGRAM = """
import torch, poptorch, poptorch.profiling

class Work:
    def add(self, a, b=1):
        return a + b

channel = poptorch.profiling.Channel("mine")
work = channel.instrument(Work(), "add")
assert work.add(2, b=3) == 5
with channel.tracepoint("a step"):
    pass
options = poptorch.Options().showCompilationProgressBar(False)
model = torch.nn.Linear(2, 1)
class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, x):
        return poptorch.identity_loss(self.model(x), "mean")
wrapped = poptorch.trainingModel(Loss(), options)
data = torch.utils.data.TensorDataset(torch.randn(6, 2))
for (x,) in poptorch.DataLoader(options, data, batch_size=2):
    wrapped(x)
wrapped.copyWeightsToHost()
print("done")
"""


def run(tmp_path, pvti):
    environment = {**os.environ, "PYTHONPATH": SOURCES, "ABELE_TARGET": "reference"}
    environment |= {"PVTI_OPTIONS": pvti} if pvti is not None else {}
    command = [python(), "-c", PROGRAM]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    return done, [json.loads(path.read_text()) for path in tmp_path.rglob("abele_*.json")]


def test_a_program_is_traced_from_import_to_exit(tmp_path):
    asked = {"enable": "true", "directory": str(tmp_path / "traces")}
    _, (events,) = run(tmp_path, json.dumps(asked))
    spans = [event for event in events if event["ph"] == "X"]
    results = {(event["cat"], event["name"]) for event in spans}
    assert results >= {
        ("mine", "Work.add"),
        ("mine", "a step"),
        ("poptorch.DataLoader", "__next__"),
    }
    training = {name for channel, name in results if channel == "poptorch.trainingModel"}
    assert training >= {
        "modelCompilation",
        "graphPreprocessing",
        "modelExecution",
        "copyWeightsToHost",
    }
    executions = [event for event in spans if event["name"] == "modelExecution"]
    assert len(executions) == 3
    assert all(event["dur"] > 0 for event in executions)
    (compilation,) = [event for event in spans if event["name"] == "modelCompilation"]
    (capture,) = [event for event in spans if event["name"] == "graphPreprocessing"]
    assert compilation["ts"] <= capture["ts"]
    assert capture["ts"] + capture["dur"] <= compilation["ts"] + compilation["dur"]


@pytest.mark.parametrize("pvti", [None, "", '{"enable": "false"}', "{}"])
def test_without_the_variable_nothing_is_written(pvti, tmp_path):
    assert run(tmp_path, pvti)[1] == []


def test_text_that_cannot_be_read_traces_with_defaults_and_warns(tmp_path):
    done, (events,) = run(tmp_path, "yes please")
    assert "PVTI_OPTIONS='yes please' cannot be read" in done.stderr
    assert any(event["name"] == "a step" for event in events)


def test_only_the_channels_asked_for_are_written(tmp_path):
    _, (events,) = run(tmp_path, '{"enable": "true", "channels": "mine, other"}')
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"mine"}


@pytest.mark.parametrize("text", ['{"enable": "true", "duration": "soon"}', "[1]", "{"])
def test_bad_options_give_the_default_recorder(text, caplog):
    recorder = profiling.recorder_from(text)
    assert recorder is not None
    assert recorder.wants("anything")
    assert "cannot be read" in caplog.text


def test_switched_off_a_channel_costs_nothing():
    class Work:
        def add(self):
            return 1

    channel, work = profiling.Channel("mine"), Work()
    assert channel.instrument(work, "add") is work
    assert "add" not in vars(work)
    with channel.tracepoint("x") as opened:
        assert opened is None
    batches = iter([1])
    assert channel._iterate(batches, "x") is batches


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    made = profiling.Recorder(str(tmp_path))
    monkeypatch.setattr(profiling, "_recorder", made)
    return made


def events(recorder, tmp_path):
    recorder.close()
    (path,) = tmp_path.iterdir()
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def test_an_error_passes_through_and_ends_its_event(recorder, tmp_path):
    channel = profiling.Channel("mine")
    with contextlib.suppress(KeyError), channel.tracepoint("broken"):
        raise KeyError("x")
    assert [event["name"] for event in events(recorder, tmp_path)] == ["broken"]


def test_a_method_that_does_not_exist_is_an_error(recorder):
    with pytest.raises(AttributeError, match="nothing"):
        profiling.Channel("mine").instrument(object(), "nothing")


def test_events_after_the_duration_are_dropped(tmp_path, monkeypatch):
    made = profiling.Recorder(str(tmp_path), duration=1e-9)
    monkeypatch.setattr(profiling, "_recorder", made)
    with profiling.Channel("mine").tracepoint("late"):
        pass
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_what_it_wrote(tmp_path):
    made = profiling.Recorder(str(tmp_path / "deep"))
    made.add("c", "one", 1000)
    made._file.flush()
    (path,) = tmp_path.rglob("abele_*.json")
    process, thread, span = json.loads(f"{path.read_text()}]")
    assert [process["name"], thread["name"], span["name"]] == ["process_name", "thread_name", "one"]
    assert (span["ts"], span["cat"]) == (1.0, "c")
    made.close()
    made.add("c", "late", 1)
    assert len(json.loads(path.read_text())) == 3
