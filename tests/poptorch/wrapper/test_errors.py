"""Errors: their classes, attributes and text, the frames that they show, and long ones."""

import io
import logging
import pickle
import re
import traceback

import pytest
import torch

import poptorch
from abele.errors import CaptureError, MeetingPointError, RankLostError
from helpers.wrapping import Calls, inference, options, scorer
from poptorch import processes
from poptorch._logging import HIDDEN_FRAMES
from poptorch._wrapper.errors import shortened, show_user_frames
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


# Failures that a program can pretend: its name, and the class and type of the error.
PRETENDED = {
    "Poptorch": (poptorch.Error, "poptorch_cpp_error"),
    "Popart": (poptorch.Error, "popart_exception"),
    "PopartInternal": (poptorch.Error, "popart_internal_exception"),
    "Poplibs": (poptorch.Error, "poplibs_exception"),
    "PoplarUnrecoverable": (poptorch.UnrecoverableError, "poplar_unrecoverable_runtime_error"),
    "PoplarUnknown": (poptorch.Error, "poplar_unknown_runtime_error"),
    "PoplarRecoverableFullReset": (poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
    "PoplarLinkError": (poptorch.Error, "poplar_link_error"),
}


@pytest.mark.parametrize("kind", list(TestErrorType), ids=lambda kind: kind.name)
def test_pretended_failures_name_place_type_and_contexts_and_survive_pickling(kind):
    cls, layer = PRETENDED[kind.name]
    with pytest.raises(poptorch.Error, match=kind.name) as caught:
        _throwTestError(kind)
    error = caught.value
    assert (type(error), error.type) == (cls, layer)
    assert re.fullmatch(r"poptorch_core\.py:\d+", error.location)
    assert str(error) == (
        f"In {error.location}: '{layer}': {error.message}\nError raised in:\n  [0] _throwTestError"
    )
    if cls is poptorch.RecoverableError:
        assert error.recovery_action == "FULL_RESET"
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - made a line above
    assert type(copied) is cls
    assert (str(copied), vars(copied)) == (str(error), vars(error))


def test_errors_raised_from_python_name_their_type_and_no_place():
    with pytest.raises(poptorch.Error) as caught:
        poptorch.trainingModel(scorer(), {})
    error = caught.value
    assert (error.type, error.location) == ("poptorch_py_error", "")
    assert error.message.startswith("Invalid type: 'options' is of type dict")
    assert str(error) == f"'poptorch_py_error': {error.message}"


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (MeetingPointError("No place.", 4), "No place. The launcher is poprun --num-instances 4."),
        (RankLostError("One is gone."), "One is gone."),
    ],
)
def test_errors_between_processes_name_the_options_of_poprun(problem, text):
    result = processes.problem_between(problem)
    assert isinstance(result, poptorch.Error)
    assert result.message == text


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


# -- frames ------------------------------------------------------------------------------


def failure(function, kind):
    """The error of wrapping and calling ``function``, as raised and as printed."""
    with pytest.raises(kind) as caught:
        poptorch.inferenceModel(Calls(lambda self, x: function(x)), options())(torch.ones(2, 3))
    return caught.value, "".join(traceback.format_exception(caught.value))


def of_forward(x):
    raise KeyError("mine")


def test_an_error_in_forward_keeps_its_type_and_loses_the_frames_of_the_tracer():
    error, text = failure(of_forward, KeyError)
    assert error.args == ("mine",)
    assert "in of_forward" in text
    assert "proxy_tensor" not in text
    assert text.count("File ") < 8
    assert error.__notes__ == [HIDDEN_FRAMES]


def test_the_frame_that_raised_stays():
    _, text = failure(lambda x: x @ torch.ones(2, 2), RuntimeError)
    assert "test_errors.py" in text
    assert "same reduction dim" in text
    assert len(text.splitlines()) < 30


def test_the_errors_that_led_to_an_error_are_short_too():
    error, text = failure(lambda x: x.sum().item(), poptorch.Error)
    assert "reads the value of a tensor" in str(error.__cause__)
    assert "_proxy_tensor" not in text
    assert "eval_frame" not in text
    assert len(text.splitlines()) < 50


def test_an_error_without_a_frame_of_the_user_keeps_all():
    with pytest.raises(ValueError, match="log level") as caught:
        poptorch.setLogLevel("LOUD")
    inside = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert not show_user_frames(inside)
    assert inside.__traceback__ is not None


def test_debug_shows_every_frame():
    poptorch.setLogLevel("DEBUG")
    try:
        error, text = failure(of_forward, KeyError)
    finally:
        poptorch.setLogLevel("WARN")
    assert "proxy_tensor" in text
    assert not hasattr(error, "__notes__")


def test_torch_does_not_log_what_an_operator_refuses():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(handler)
    try:
        failure(lambda x: x @ torch.ones(2, 2), RuntimeError)
    finally:
        log.removeHandler(handler)
    assert not records
