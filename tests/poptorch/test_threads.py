"""Threads that capture at the same time, and threads that do other things meanwhile."""

import threading

import pytest
import torch
from torch import nn

import poptorch
from abele import _torch, scopes
from wrapping import options


class Waiting(nn.Module):
    """Lets something else happen in the middle of its capture."""

    def __init__(self, meanwhile=lambda: None):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.meanwhile = meanwhile
        for value in self.parameters():
            value.data.fill_(0.5)

    def forward(self, x):
        poptorch.Block.start("first", 0)
        half = torch.tanh(self.first(x))
        if poptorch.isRunningOnIpu():
            self.meanwhile()
        poptorch.Block.start("second", 0)
        out = self.second(half) + torch.ones(2, device=half.device)
        return out, poptorch.identity_loss(out, "mean")


def trained(meanwhile=lambda: None):
    model = poptorch.trainingModel(Waiting(meanwhile), options())
    model(torch.ones(1, 2))
    return model


def started(function):
    """The thread of a function, and where what it returns or raises will be."""
    found = []

    def run():
        try:
            found.append(function())
        except Exception as problem:  # noqa: BLE001 - raised by finished
            found.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def finished(thread, found):
    thread.join(60)
    assert not thread.is_alive()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def test_captures_take_turns():
    alone = trained()
    begun, outer_ended = [], threading.Event()

    def begin_another():
        # Were they to overlap, the inner one would end after the outer one.
        begun.append(started(lambda: trained(lambda: outer_ended.wait(10))))
        begun[0][0].join(0.3)

    own = vars(_torch.FakeTensor)["device"]
    outer = trained(begin_another)
    outer_ended.set()
    inner = finished(*begun[0])
    assert outer.executable_hash == inner.executable_hash == alone.executable_hash
    assert torch.equal(outer.first.weight.detach(), alone.first.weight.detach())
    assert vars(_torch.FakeTensor)["device"] is own


def test_eager_code_of_another_thread_neither_sees_nor_disturbs_a_capture():
    alone = trained()
    seen = []

    def eager():
        module = Waiting()
        out, loss = module(torch.ones(1, 2))
        loss.backward()
        fake = _torch.FakeTensorMode().from_tensor(torch.ones(1))
        where = poptorch.isRunningOnIpu(), scopes.current("block"), fake.device.type
        gradient = module.first.weight.grad
        assert gradient is not None
        return out.detach(), gradient, where

    expected = eager()
    model = trained(lambda: seen.append(finished(*started(eager))))
    assert all(map(torch.equal, seen[0][:2], expected[:2]))
    assert seen[0][2] == expected[2] == (False, None, "cpu")
    assert model.executable_hash == alone.executable_hash


def test_module_of_a_capture_that_runs_elsewhere_opens_no_scope():
    class Slow(nn.Module):
        def forward(self, x):
            entered.set()
            assert captured.wait(10)
            return x

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Tanh())
            self.elsewhere = Slow()

        def forward(self, x):
            begun.append(started(lambda: self.elsewhere(torch.ones(1))))
            assert entered.wait(10)
            result = self.inner(self.inner(x) + 1)
            captured.set()
            finished(*begun[0])
            return result

    begun, entered, captured = [], threading.Event(), threading.Event()
    model = poptorch.inferenceModel(Outer(), options())
    model.compile(torch.ones(1))
    assert {"inner/0/Tanh:0", "Add:0"} <= set(model.getTensorNames())


def test_host_code_that_a_capture_waits_for_may_not_compile():
    inner = poptorch.inferenceModel(nn.Tanh(), options())

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.on_host = poptorch.CPU(lambda x: inner(x), "inner")

        def forward(self, x):
            return self.on_host(x) * 2

    model = poptorch.inferenceModel(Outer(), options())
    with pytest.raises(poptorch.Error, match="Compile the inner one before"):
        model(torch.zeros(1))
    inner.compile(torch.zeros(1))
    assert poptorch.inferenceModel(Outer(), options())(torch.zeros(1)) == 0
