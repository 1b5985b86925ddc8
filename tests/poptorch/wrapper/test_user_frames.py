"""Errors of forward show the user's lines, without torch's log and without the tracer's frames."""

import logging
import traceback

import pytest
import torch

import poptorch
from helpers.wrapping import options
from poptorch._logging import HIDDEN_FRAMES
from poptorch._wrapper import errors


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def failure(function, kind):
    """The error of wrapping and calling ``function``, as raised and as printed."""
    with pytest.raises(kind) as caught:
        poptorch.inferenceModel(Model(function), options())(torch.ones(2, 3))
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
    assert "test_user_frames.py" in text
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
    assert not errors.show_user_frames(inside)
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
