"""The exceptions themselves: their classes, attributes and text, and errors too long to show."""

import io
import pickle
import re

import pytest
import torch

import poptorch
from abele.errors import CaptureError, ForeignNoteError, MeetingPointError, RankLostError
from helpers.wrapping import Calls, inference, options, rows, scorer
from poptorch import processes
from poptorch._wrapper.errors import shortened
from poptorch.poptorch_core import TestErrorType, _throwTestError

X = torch.ones(2)
LONG = "\n".join(f"line {number}" for number in range(81))


def test_classes():
    assert poptorch.Error.__mro__[1] is Exception
    assert poptorch.RecoverableError.__mro__[1] is poptorch.Error
    assert poptorch.UnrecoverableError.__mro__[1] is poptorch.Error
    assert poptorch.IndexCheckError.__mro__[1:3] == (poptorch.Error, IndexError)
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

    monkeypatch.setattr("poptorch._wrapper.capture.capture", fails)
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


# -- indices that are out of range -----------------------------------------------------------


@pytest.mark.parametrize("place", [{"ABELE_TARGET": "reference"}, {"ABELE_START": "interpret"}])
def test_an_index_out_of_range_is_one_error_wherever_it_runs(monkeypatch, place):
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    table = torch.arange(5.0)
    wrapped = inference(lambda index: table[index] + 1)
    assert torch.equal(wrapped(torch.tensor([4, 0])), torch.tensor([5.0, 1.0]))
    for kind in (poptorch.Error, IndexError):
        with pytest.raises(kind, match=r"index takes the indices -5 to 4, found 7\."):
            wrapped(torch.tensor([0, 7]))
    with pytest.raises(poptorch.IndexCheckError) as caught:
        wrapped(torch.tensor([0, -6]))
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made a line above
    assert (type(copied), str(copied)) == (poptorch.IndexCheckError, str(caught.value))


@pytest.mark.parametrize(
    ("shape", "words"),
    [((0, 2), "Pass at least one row"), ((2, 0), "dimension 1 is 0"), ((2, 3, 0), "dimension 2")],
)
def test_an_input_without_elements_is_refused_by_what_it_lacks(shape, words):
    with pytest.raises(poptorch.Error, match=rf"has no elements .*{words}"):
        inference(lambda x: x + 1)(torch.ones(shape))


# -- programs without a standard error -------------------------------------------------------


@pytest.mark.parametrize("missing", ["none", "closed"])
def test_a_program_without_standard_error_runs(monkeypatch, missing):
    file = io.StringIO()
    file.close()
    monkeypatch.setattr("sys.stderr", None if missing == "none" else file)
    shown = poptorch.Options()
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: poptorch.ipu_print_tensor(x)), shown)
    assert torch.equal(wrapped(X), X)
