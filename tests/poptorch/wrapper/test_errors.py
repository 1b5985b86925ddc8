"""The exceptions themselves: their classes, attributes and text, and errors too long to show."""

import pickle
import re

import pytest
import torch

import poptorch
from abele.errors import CaptureError, ForeignNoteError, MeetingPointError, RankLostError
from helpers.wrapping import Calls, inference, options, rows, scorer
from poptorch import processes
from poptorch._wrapper.errors_of_engine import shortened
from poptorch.poptorch_core import TestErrorType, _throwTestError

X = torch.ones(2)
LONG = "\n".join(f"line {number}" for number in range(81))


def test_classes():
    assert poptorch.Error.__mro__[1] is Exception
    assert poptorch.RecoverableError.__mro__[1] is poptorch.Error
    assert poptorch.UnrecoverableError.__mro__[1] is poptorch.Error
    for name in ("Error", "RecoverableError", "UnrecoverableError"):
        assert getattr(poptorch.poptorch_core, name) is getattr(poptorch, name)


def test_errors_raised_from_python_name_their_type_and_no_place():
    with pytest.raises(poptorch.Error) as caught:
        poptorch.trainingModel(scorer(), {})
    error = caught.value
    assert (error.type, error.location) == ("poptorch_py_error", "")
    assert error.message.startswith("Invalid type: 'options' is of type dict")
    assert str(error) == f"'poptorch_py_error': {error.message}"


@pytest.mark.parametrize("kind", list(TestErrorType))
def test_errors_of_lower_layers_name_place_type_and_contexts(kind):
    with pytest.raises(poptorch.Error) as caught:
        _throwTestError(kind)
    error = caught.value
    assert re.fullmatch(r"poptorch_core\.py:\d+", error.location)
    assert str(error) == (
        f"In {error.location}: '{error.type}': {error.message}\n"
        "Error raised in:\n  [0] _throwTestError"
    )


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (MeetingPointError("No place.", 4), "No place. The launcher is poprun --num-instances 4."),
        (ForeignNoteError("A note."), "A note. poprun --host-subnet chooses one."),
        (RankLostError("One is gone."), "One is gone."),
    ],
)
def test_errors_between_processes_name_the_options_of_poprun(problem, text):
    result = processes.problem_between(problem)
    assert isinstance(result, poptorch.Error)
    assert result.message == text


def test_the_pretended_failures_have_the_originals_names():
    assert [kind.name for kind in TestErrorType] == [
        "Poptorch",
        "Popart",
        "PopartInternal",
        "Poplibs",
        "PoplarUnrecoverable",
        "PoplarUnknown",
        "PoplarRecoverableFullReset",
        "PoplarLinkError",
    ]


@pytest.mark.parametrize("kind", list(TestErrorType))
def test_errors_survive_the_way_between_processes(kind):
    with pytest.raises(poptorch.Error) as caught:
        _throwTestError(kind)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made a line above
    assert type(copied) is type(caught.value)
    assert (str(copied), vars(copied)) == (str(caught.value), vars(caught.value))


def test_a_stopped_run_can_be_recovered_by_a_reset():
    chosen = options()
    chosen.Precision.enableFloatingPointExceptions(True)
    wrapped = poptorch.inferenceModel(Calls(lambda self, x, target: x / target.sum()), chosen)
    wrapped(*rows(4))
    with pytest.raises(poptorch.RecoverableError, match="division by zero") as caught:
        wrapped(rows(4)[0], torch.zeros(4, 3))
    assert caught.value.recovery_action == "IPU_RESET"
    assert "wrapping.py:" in caught.value.location
    assert str(caught.value).startswith(f"In {caught.value.location}: ")


# -- long errors -----------------------------------------------------------------------------


def test_an_error_of_more_than_80_lines_goes_to_a_file_in_log_dir(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise CaptureError(LONG)

    monkeypatch.setattr("poptorch._compiled.forward.capture", fails)
    with pytest.raises(poptorch.Error) as caught:
        inference(lambda x: x + 1, logDir=str(tmp_path / "logs"))(X)
    path = tmp_path / "logs" / "poptorch_error.log"
    assert path.read_text() == LONG + "\n"
    assert caught.value.message.startswith("line 0\nline 1\n")
    assert caught.value.message.endswith(f"(81 lines; the whole error is in {path})")
    assert len(str(caught.value).splitlines()) == 11


def test_an_error_of_80_lines_is_shown(tmp_path):
    text = LONG.rpartition("\n")[0]
    assert shortened(text, str(tmp_path)) == text
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_cannot_be_written_is_shown(tmp_path, caplog):
    (tmp_path / "taken").write_text("")
    assert shortened(LONG, str(tmp_path / "taken")) == LONG
    assert "cannot be written" in caplog.text
