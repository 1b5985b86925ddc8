"""Wrong input of compiled functions: plain PyTorch's errors, and nothing is lost."""

import os
import signal
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import abele
from helpers.compiled_functions import Task, batch, same_as_plain


@pytest.fixture
def step(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    task = Task()

    @abele.compile(cache=False)
    def train(x, y):
        return task.update(task.loss(x, y))

    for i in range(3):
        train(*batch(i))
    return train


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda x: x[:, :2], RuntimeError, "shapes cannot be multiplied"),
        (lambda x: x.long(), RuntimeError, "must have the same dtype, but got Long and Float"),
        (lambda x: [x], TypeError, "must be Tensor, not list"),
        (lambda x: "x", TypeError, "must be Tensor, not str"),
    ],
)
def test_errors_are_those_of_plain_pytorch_and_programs_stay(step, change, error, match):
    x, y = batch(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            with pytest.raises(error, match=match):
                step(change(x), y)
    before = step.programs[0].calls
    assert torch.isfinite(step(x, y))
    assert (step.programs[0].calls, step.eager) == (before + 1, None)


WIDE = torch.ones(3, dtype=torch.float64)
MIXED = {
    "cross entropy": lambda x, y: F.cross_entropy(x, y, weight=WIDE),
    "label smoothing": lambda x, y: F.cross_entropy(x, y, weight=WIDE, label_smoothing=0.1),
    "of integers": lambda x, y: F.cross_entropy(x, y, weight=WIDE.long()),
    "of 32 bits": lambda x, y: F.cross_entropy(x, y.int()),
    "likelihood": lambda x, y: F.nll_loss(x.log_softmax(1), y, weight=WIDE),
    "of logits": lambda x, y: F.binary_cross_entropy_with_logits(x, F.one_hot(y, 3)),
    "layer norm": lambda x, y: F.layer_norm(x, (3,), WIDE).sum(),
    "group norm": lambda x, y: F.group_norm(x, 1, WIDE, WIDE).sum(),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("target", ["reference", pytest.param("cpu", marks=pytest.mark.compiler)])
def test_types_that_do_not_fit_are_the_error_of_plain_pytorch(monkeypatch, name, target):
    monkeypatch.setenv("ABELE_TARGET", target)
    task = Task()

    @abele.compile(cache=False, start="wait")
    def train(x, y, wrong):
        out = task.model(x)
        return task.update(MIXED[name](out, y) if wrong else F.cross_entropy(out, y))

    train(*batch(0), False)
    for each in (train.function, train, train):
        with pytest.raises(RuntimeError, match=r"scalar type|result type|target dtype") as error:
            each(*batch(1), True)
        assert type(error.value) is RuntimeError
    assert torch.isfinite(train(*batch(2), False))


def test_a_call_that_is_no_program_leaves_those_of_others(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model = abele.compile(torch.nn.Linear(5, 3), cache=False)
    x, _ = batch(0)
    with torch.no_grad():
        outputs = [model(x) for _ in range(3)]
    with pytest.warns(abele.EagerWarning, match="but for calls that have a program: .* requires"):
        model(x).sum().backward()
    before = model.programs[0].calls
    with torch.no_grad():
        assert torch.equal(model(x), outputs[0])
    assert model.programs[0].calls == before + 1


def test_a_start_that_does_not_exist():
    with pytest.raises(ValueError, match=r"start='soon' was asked for\. Pass one of tiered, wait"):
        abele.compile(len, start="soon")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_calls_a_function_that_another_thread_is_in(step):
    held, release = threading.Event(), threading.Event()

    def hold():
        with step._lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it where it waits
        step(*batch(4))
        os._exit(7)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("kind", [SystemExit, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 3])
def test_a_call_that_user_code_ends_can_be_made_again(kind, at):
    def build(wrap):
        task, state = Task(), SimpleNamespace(calls=0, ends=False)

        def helper(loss):
            if state.ends:
                raise kind
            return loss * 2

        @wrap
        def step(x, y):
            state.calls += 1
            return task.update(helper(task.loss(x, y))).item()

        def call(i):
            ended, state.ends = False, i == at
            try:
                return step(*batch(i))
            except kind:
                ended, state.ends = True, False
                if kind is KeyboardInterrupt:  # after which a program's call has not begun
                    state.calls = i
                return ended, step(*batch(i))

        return call, lambda: (task, state)

    assert same_as_plain(build)
