"""Torch's compiler says nothing to users, unless they ask."""

import logging
import threading
import warnings

import pytest

from abele import _torch
from abele.program import Program
from abele.targets import aoti
from abele.targets.quiet import quiet_compiler


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def kept(monkeypatch):
    """What reaches a handler of the compiler's logger."""
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    handler, logger = Kept(), logging.getLogger("torch._inductor")
    logger.addHandler(handler)
    yield handler.messages
    logger.removeHandler(handler)


def say(text):
    logging.getLogger("torch._inductor.ir").warning(text)


def test_logs_and_warnings_are_kept_back(kept):
    with quiet_compiler():
        say("missing a c-shim")
        warnings.warn("deprecated", UserWarning, stacklevel=1)
    assert kept == []
    say("afterwards")
    assert kept == ["afterwards"]


def test_other_threads_and_other_loggers_are_not_concerned(kept, caplog):
    with quiet_compiler():
        other = threading.Thread(target=say, args=("of another thread",))
        other.start()
        other.join()
        logging.getLogger("users.own").warning("of the user")
    assert kept == ["of another thread"]
    assert "of the user" in caplog.text


def test_whoever_sets_torch_logs_gets_them(kept, monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+inductor")
    with quiet_compiler():
        say("asked for")
    assert kept == ["asked for"]


def test_compiling_is_quiet(kept, monkeypatch):
    def compiles(graph, inputs, path, options):
        say("missing a c-shim")
        warnings.warn("deprecated", UserWarning, stacklevel=1)
        raise _torch.CompileFailure("no compiler")

    monkeypatch.setattr(_torch, "aoti_compile", compiles)
    program = Program(name="step", graph=None, inputs=(), outputs=(), history=())
    with pytest.raises(aoti.CompilerError, match="could not be compiled"):
        aoti.compile_program(program, None, {})
    assert kept == []
