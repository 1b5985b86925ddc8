"""Compiled code that lets other threads run: the same results, nothing kept, errors told."""

import io
import threading
import time
import weakref
import zipfile

import pytest
import torch

from abele import build
from abele.step.config import StepConfig
from abele.targets import released as _released
from abele.targets.aoti import Package
from abele.targets.base import Compiled
from conftest import usable
from helpers.runs import captured


class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(768, 768))

    def forward(self, x):
        for _ in range(12):
            x = torch.tanh(x @ self.weight)
        return x + torch.arange(768.0)


@pytest.mark.compiler
def test_other_threads_run_while_compiled_code_does():
    module, x = Slow(), torch.randn(768, 768)
    target = usable("cpu")
    programs = captured(module, (x,)).programs
    made, _ = build(programs, StepConfig(training=False), target=target)
    compiled = made.compiled["forward"]
    released = compiled.released()
    arguments = [module.weight.detach(), x]
    (output,), (expected,) = released(list(arguments)), compiled.run(list(arguments))
    assert torch.equal(output, expected)
    assert output.data_ptr() != expected.data_ptr()

    # What goes in and comes out is freed by who holds it last.
    temporary = x.clone()
    gone = weakref.ref(temporary)
    taken = [module.weight.detach(), temporary]
    del temporary
    released(taken)
    assert taken == []
    assert gone() is None

    inside, ticks = threading.Event(), 0

    def work():
        inside.set()
        for _ in range(10):
            released(list(arguments))
        inside.clear()

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        ticks += inside.is_set()
    worker.join()
    # Held by each of the calls, the lock would let this thread run about once per call.
    assert ticks > 15


def test_an_error_of_the_code_is_an_exception():
    with pytest.raises(RuntimeError, match="its text is on the standard error stream"):
        _released._check(1)
    _released._check(0)


def test_targets_without_such_a_call_keep_theirs():
    def run(inputs):
        return inputs

    assert Compiled(run).released() is run


def test_code_that_needs_the_loader_keeps_it_and_says_so():
    def run(inputs):
        return inputs

    with io.BytesIO() as payload:
        with zipfile.ZipFile(payload, "w") as package:
            package.writestr("program.so", b"")
            package.writestr("operators.json", "{}")  # what the loader calls by name
        stage = Package(run, payload.getvalue())
    with pytest.warns(UserWarning, match="needs? torch's loader.*no other stage works"):
        assert stage.released() is run
