"""``executor.fit`` and ``abele fit``: answers before anything is compiled."""

import json
import re
import sys

import pytest
import torch

import poptorch
from abele import __main__ as command_line
from abele.errors import LimitError
from helpers.models import MODELS

SCRIPT = """
import sys
import torch, poptorch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 64)

    def forward(self, x):
        return poptorch.identity_loss(self.fc(x).square(), reduction="mean")

print("the program was given", sys.argv[1:])
model = Model()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
wrapped = poptorch.trainingModel(model, poptorch.Options(), optimizer)
try:
    wrapped(torch.ones(8, 64))
except Exception:
    print("caught")
print("not reached")
"""


def wrapped(name="introduction", **settings):
    model = MODELS[name]
    module = model.fresh()
    options = poptorch.Options()
    options.Training.gradientAccumulation(settings.get("accumulation", 1))
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.05)
    return poptorch.trainingModel(module, options, optimizer), model.batch()


def test_a_small_model_fits_and_nothing_is_compiled_or_changed(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model, batch = wrapped("batch norm and dropout")
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    random = torch.get_rng_state()
    report = model.fit(*batch, limit="1TiB")
    assert report.verdict == "fits"
    assert not model.isCompiled()
    assert torch.equal(random, torch.get_rng_state())
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, before[name])
    text = str(report)
    assert "It fits into 1TiB: it needs " in text
    assert text.count("workspaces of libraries") <= 1
    assert re.search(r"models\.py:\d+ in forward", text)
    assert json.loads(json.dumps(report.data()))["bytes"] == report.data()["bytes"]


def test_what_is_too_large_is_refused_by_how_much(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model, batch = wrapped()
    report = model.fit(*batch, limit="1MiB")
    assert report.verdict == "does not fit"
    assert re.search(r"It does not fit into 1MiB: .* more than there are", str(report))


def test_the_answer_is_the_same_after_compiling(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model, batch = wrapped()
    before = model.fit(*batch, limit="1TiB").answer.estimate.data()
    model(*batch)
    assert model.fit(*batch, limit="1TiB").answer.estimate.data() == before


def test_rows_that_do_not_divide_are_an_error_as_in_a_call(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model, batch = wrapped(accumulation=3)
    with pytest.raises(AssertionError, match="not a multiple of 3"):
        model.fit(*(each[:4] for each in batch))


def test_a_limit_that_means_nothing_is_an_error(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model, batch = wrapped()
    with pytest.raises(poptorch.Error, match="is no size") as caught:
        model.fit(*batch, limit="much")
    assert isinstance(caught.value.__cause__, LimitError)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


def test_the_command_stops_a_program_at_its_first_compile(script, monkeypatch, capsys):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    assert command_line.main(["fit", str(script), "--limit", "1TiB", "--", "--epochs", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("It fits into 1TiB")
    assert "given ['--epochs', '3']" in err
    assert "caught" not in err
    assert "not reached" not in err


CATCHES_ALL = """
import sys, torch, poptorch
model = torch.nn.Linear(4, 4)
wrapped = poptorch.inferenceModel(model)
for _ in range(3):
    try:
        result = wrapped(torch.ones(2, 4))
    except:
        print("caught", sys.exc_info()[0].__name__)
"""


@pytest.mark.parametrize("end", ["", "print(result)\n", "sys.exit(1)\n"])
def test_a_program_that_catches_everything_is_answered_all_the_same(
    tmp_path, monkeypatch, capsys, end
):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    path = tmp_path / "catches.py"
    path.write_text(CATCHES_ALL + end)
    assert command_line.main(["fit", str(path), "--limit", "1TiB"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("It fits into 1TiB")
    assert err.count("caught Answered") == 3
    assert command_line.main(["stage", str(path), "--ipus", "1"]) == 0
    assert "It fits into mk2" in capsys.readouterr().out
    assert command_line.main(["stage", str(path), "--ipus", "7"]) == 1
    assert "There are 7 devices, and 1 of them can get" in capsys.readouterr().err


def test_the_command_prints_json_alone(script, monkeypatch, capsys):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    assert command_line.main(["fit", str(script), "--limit", "1KiB", "--json"]) == 3
    facts = json.loads(capsys.readouterr().out)
    assert facts["verdict"] == "does not fit"
    assert facts["limit"]["size"] == 1024


# A program, and what is said of it by both commands or by one.
EXPLAINED = [
    ("print(1)", "ended without compiling a model", ""),
    ("print(1)", "Another plain PyTorch program has to be ported first: abele port", "fit"),
    ("print(1)", "--ipus 2 -- ARG ...", "stage"),
    ("import sys; sys.exit(3)", "ended with status 3 before it compiled a model", ""),
    ("import sys; sys.exit(3)", "behind --: abele fit", "fit"),
    ("1 / 0", "empty.py failed with ZeroDivisionError; its traceback is above.", ""),
    (None, "There is no file", ""),
]


@pytest.mark.parametrize("command", ["fit", "stage"])
def test_a_program_without_a_model_is_explained(command, tmp_path, capsys):
    path = tmp_path / "empty.py"
    asked = ["--limit", "1GiB"] if command == "fit" else ["--ipus", "2"]
    for text, message, by in EXPLAINED:
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        assert command_line.main([command, str(path), *asked]) == 1
        assert message in capsys.readouterr().err or by not in ("", command), text


def test_an_error_that_the_program_catches_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    path = tmp_path / "program.py"
    path.write_text(SCRIPT.replace("self.fc(x)", "self.fc(x[:, :3])"))
    assert command_line.main(["fit", str(path)]) == 1
    said = rf"abele fit: {path} caught an error of its first call\. RuntimeError: .*dim"
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("hook", [sys.excepthook, sys.__excepthook__], ids=["set", "python's"])
def test_a_program_that_fails_has_the_traceback_that_python_prints(
    tmp_path, capsys, monkeypatch, hook
):
    monkeypatch.setattr(sys, "excepthook", hook)
    path = tmp_path / "fails.py"
    path.write_text("def read():\n    raise OSError('no data')\n\nread()\n")
    assert command_line.main(["fit", str(path), "--limit", "1GiB"]) == 1
    lines = capsys.readouterr().err.splitlines()
    frames = [line for line in lines if line.startswith("  File")]
    assert [frame.split(", ")[1] for frame in frames] == ["line 4", "line 2"]
    assert "OSError: no data" in lines


WAITING = "import signal, sys, time\n\ndef wait():\n    signal.raise_signal(signal.SIGINT)\n\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("wait()", ", in line 6"),
        ("try:\n    wait()\nexcept KeyboardInterrupt:\n    sys.exit(130)", ""),
    ],
    ids=["python's end", "an end of its own"],
)
def test_ctrl_c_is_one_line_that_says_what_was_interrupted(tmp_path, capsys, text, where):
    path = tmp_path / "long.py"
    path.write_text(WAITING + text)
    assert command_line.main(["fit", str(path), "--limit", "1GiB"]) == 130
    assert capsys.readouterr().err == f"abele fit: interrupted while {path} ran{where}\n"


def test_ctrl_c_while_changes_are_tried_leaves_the_answer(script, monkeypatch, capsys):
    def interrupted(search):
        raise KeyboardInterrupt

    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.setattr("poptorch._fit.Search.ladder", interrupted)
    assert command_line.main(["fit", str(script), "--limit", "1KiB"]) == 130
    out, err = capsys.readouterr()
    assert out.startswith("It does not fit into 1KiB")
    assert err.endswith("abele fit: interrupted after the answer, while changes were tried\n")
