"""The logger that programs know by name, its levels and its form; the bar during compilation."""

import logging
import re

import pytest

import poptorch
from helpers.wrapping import inference, rows, trainer
from helpers.wrapping import scorer as model
from poptorch import _logging

LOGGER = logging.getLogger("poptorch::python")


@pytest.fixture(autouse=True)
def _level():
    before = LOGGER.level
    yield
    LOGGER.setLevel(before)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("TRACE", 5),
        ("DEBUG_IR", logging.DEBUG),
        ("WARN", logging.WARNING),
        (0, 5),
        (3, logging.WARNING),
        (4, logging.ERROR),
        (6, logging.CRITICAL + 10),
    ],
)
def test_levels_have_names_and_numbers(level, expected):
    poptorch.setLogLevel(level)
    assert LOGGER.level == expected


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("LOUD", "Unknown log level: LOUD. Valid values are DEBUG"),
        ("warn", "Unknown log level"),
        (5, "Invalid log level integer 5"),
    ],
    ids=["unknown name", "lower case", "unknown number"],
)
def test_other_levels_are_refused(level, words):
    with pytest.raises(ValueError, match=words):
        poptorch.setLogLevel(level)


def test_the_environment_chooses_the_level(monkeypatch):
    monkeypatch.setenv("POPTORCH_LOG_LEVEL", "ERR")
    _logging.start()
    assert LOGGER.level == logging.ERROR
    assert len(LOGGER.handlers) == 1


def test_lines_carry_time_name_and_level(capfd):
    poptorch.setLogLevel("WARN")
    LOGGER.warning("the text")
    LOGGER.info("not shown")
    line = r"\[\d\d:\d\d:\d\d\.\d{3}\] \[poptorch::python\] \[warning\] the text\n"
    assert re.fullmatch(line, capfd.readouterr().err)


def test_compiling_shows_a_bar_and_says_which_target_runs(capfd):
    wrapped = poptorch.trainingModel(model())
    wrapped(*rows(4))
    shown = capfd.readouterr().err
    assert "Graph compilation: 100%" in shown
    assert f"abele: target reference, executable {wrapped.executable_hash[:12]}, made in" in shown
    assert wrapped.compilationTime().total_seconds() > 0


def test_the_bar_can_be_left_out(capfd):
    trainer(model())(*rows(4))
    assert capfd.readouterr().err == ""


def test_a_failing_compilation_does_not_claim_to_be_done_and_runs_hooks(capfd):
    def forward(x):
        raise KeyError("mine")

    wrapped, seen = inference(forward), []
    wrapped.options._unfreeze()
    wrapped.options.showCompilationProgressBar(True)
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append("before")),
        poptorch.registerPostCompileHook(lambda: seen.append("after")),
    ]
    with pytest.raises(KeyError):
        wrapped(rows(2)[0])
    for handle in handles:
        handle.remove()
    assert "100%" not in capfd.readouterr().err
    assert seen == ["before", "after"]
