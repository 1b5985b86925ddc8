"""Threads that capture at the same time, and threads that do other things meanwhile."""

import os
import threading

import pytest
import torch
from torch import nn

import poptorch
from abele import _torch
from abele.locks import Lock
from abele.trace import scopes
from helpers.wrapping import options, plain_steps, rows, scorer, sgd, trainer, weights


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
    output = []

    def run():
        try:
            output.append(function())
        except Exception as problem:  # noqa: BLE001 - raised by finished
            output.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, output


def finished(thread, results):
    thread.join(60)
    assert not thread.is_alive()
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def test_captures_take_turns():
    alone = trained()
    begun, outer_ended = [], threading.Event()

    def begin_another():
        # Were they to overlap, the inner one would end after the outer one.
        begun.append(started(lambda: trained(lambda: outer_ended.wait(60))))
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
            assert captured.wait(60)
            return x

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Tanh())
            self.elsewhere = Slow()

        def forward(self, x):
            begun.append(started(lambda: self.elsewhere(torch.ones(1))))
            assert entered.wait(60)
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


def together(functions):
    """What functions return that begin at the same time, each in a thread of its own."""
    barrier = threading.Barrier(len(functions))

    def begin(function):
        barrier.wait(60)
        return function()

    threads = [started(lambda function=each: begin(function)) for each in functions]
    return [finished(*each) for each in threads]


def test_threads_that_make_the_first_call_of_one_wrapper_take_turns():
    x, target = rows(4)
    for make in (lambda m: poptorch.inferenceModel(m, options()), trainer):
        model = scorer()
        wrapped = make(model)
        expected = scorer()(x, target)
        results = together([lambda wrapped=wrapped: wrapped(x, target)] * 6)
        assert wrapped.isCompiled()
        if not wrapped._wrapped.training:
            assert all(torch.equal(scores, expected[1].detach()) for _, scores in results)
            continue
        plain = scorer()
        plain_steps(plain, sgd(plain), [[(x, target)]] * 6)
        assert torch.equal(weights(model), weights(plain))
        assert len({loss.item() for loss, _ in results}) == 6


def test_threads_that_train_one_wrapper_lose_no_update():
    x, target = rows(4)
    model, plain = scorer(), scorer()
    wrapped = trainer(model)
    wrapped(x, target)

    def train():
        for _ in range(50):
            wrapped(x, target)
            assert torch.isfinite(model.fc.weight).all()

    together([train] * 4)
    plain_steps(plain, sgd(plain), [[(x, target)]] * 201)
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=0)


def test_training_and_inference_of_one_module_in_threads_agree():
    x, target = rows(4)
    model = scorer()
    training, testing = trainer(model), poptorch.inferenceModel(model, options())
    seen = set()

    def test():
        for _ in range(20):
            seen.add(testing(x, target)[0].item())

    losses = []
    together([lambda: losses.extend(training(x, target)[0].item() for _ in range(20)), test, test])
    # Inference sees the weights between two updates, never half of them.
    assert seen <= {*losses, testing(x, target)[0].item()}


def test_a_call_that_fails_leaves_the_wrapper_to_others():
    x, target = rows(4)
    wrapped = trainer(scorer())
    with pytest.raises(poptorch.Error, match="Mandatory parameter target missing"):
        wrapped(x)
    wrapped(x, target)
    with pytest.raises(poptorch.Error, match="Shape mismatch"):
        wrapped(x[:3], target)
    assert finished(*started(lambda: wrapped(x, target)[0])) > 0


def test_wrappers_of_one_tree_share_their_lock_and_others_do_not():
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    parts = [poptorch.inferenceModel(each, options()) for each in (first, second)]
    whole = poptorch.inferenceModel(nn.Sequential(first, nn.Tanh(), second), options())
    assert parts[0]._lock is not parts[1]._lock
    with whole._lock:
        for part in parts:
            assert not taken(part._lock)
    assert taken(parts[0]._lock)
    assert poptorch.inferenceModel(first, options())._lock is parts[0]._lock


def taken(lock):
    """Whether another thread gets a lock at once."""

    def take():
        if lock.acquire(timeout=0.05):
            lock.release()
            return True
        return False

    return finished(*started(take))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_finds_locks_open():
    lock, held, release = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            release.wait(60)

    thread = started(hold)
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        with lock, lock:
            os._exit(7)
    release.set()
    finished(*thread)
    with lock:
        inner = os.fork()
        if inner == 0:
            lock.__exit__()  # the thread that forks still has it
            os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) == 8
