"""Compiled code lets other threads of Python run, and keeps nothing of what it is given."""

import threading
import time
import weakref

import pytest
import torch

from abele import build
from abele.step.config import StepConfig
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
    compute = made.compiled["forward"].of_stage()
    arguments = [module.weight.detach(), x]
    (first,), (second,) = compute(list(arguments)), compute(list(arguments))
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()

    # What goes in and comes out is freed by who holds it last.
    temporary = x.clone()
    gone = weakref.ref(temporary)
    taken = [module.weight.detach(), temporary]
    del temporary
    compute(taken)
    assert taken == []
    assert gone() is None

    inside, ticks = threading.Event(), 0

    def work():
        inside.set()
        for _ in range(10):
            compute(list(arguments))
        inside.clear()

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        ticks += inside.is_set()
    worker.join()
    # Held by each of the calls, the lock would let this thread run about once per call.
    assert ticks > 15
