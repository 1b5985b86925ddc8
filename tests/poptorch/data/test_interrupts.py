"""After an interrupt at any moment of reading, a new iterator reads everything."""

import contextlib
import signal
import sys
import threading

import pytest
import torch

import poptorch
from helpers import datasets as data
from poptorch._data.accessor import AsynchronousDataAccessor
from poptorch._data.dataloader import DataLoader

pytestmark = [
    pytest.mark.usefixtures("_spawns"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}
SIZE, LIMIT_S = 40, 60


@pytest.fixture(autouse=True)
def _nobody_waits_for_ever(monkeypatch):
    def late(*_):
        raise AssertionError("reading waits for ever")

    # Python prints what a callback raises, and goes on.
    monkeypatch.setattr(sys, "unraisablehook", lambda caught: None)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Interrupt:
    """Raises a KeyboardInterrupt before one line of what runs in it.

    Args:
        at: the number of the line, from 0, in whichever function and file it is.

    Attributes:
        raised: whether there were so many lines.
    """

    def __init__(self, at):
        self._left, self.raised = at, False

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        if frame.f_code.co_filename == __file__:
            return None
        if event == "line":
            if not self._left:
                self.raised = True
                sys.settrace(None)
                raise KeyboardInterrupt
            self._left -= 1
        return self._trace


@contextlib.contextmanager
def opened_accessor(**settings):
    opened = AsynchronousDataAccessor(data.Range(SIZE, "tensor"), **FORK, **settings)
    try:
        yield opened
    finally:
        opened.terminate()


@contextlib.contextmanager
def opened_loader():
    loader = DataLoader(
        poptorch.Options(),
        torch.utils.data.TensorDataset(torch.arange(SIZE)),
        mode=poptorch.DataLoaderMode.Async,
        async_options=FORK,
    )
    try:
        yield loader
    finally:
        loader.terminate()


def numbers(elements):
    return [int(element[0] if isinstance(element, list) else element) for element in elements]


def interrupted(function, at):
    """The result of a call, None if it was interrupted; and whether there was an interrupt."""
    result = None
    with Interrupt(at) as interrupt:
        try:  # not contextlib.suppress, whose lines would be interrupted too
            result = function()
        except KeyboardInterrupt:
            assert interrupt.raised
    return result, interrupt.raised


@pytest.mark.parametrize("opened", [opened_accessor, opened_loader])
def test_after_an_interrupt_before_any_line_of_next_all_is_read_anew(opened):
    with opened() as source:
        at, broken = 0, True
        while broken:
            iterator = iter(source)
            next(iterator)
            _, broken = interrupted(iterator.__next__, at)
            assert numbers(source) == list(range(SIZE))
            at += 5
        assert at > 20


def test_an_iterator_that_was_interrupted_gives_nothing_more():
    with opened_accessor() as source:
        iterator = iter(source)
        interrupted(iterator.__next__, 8)
        with pytest.raises(poptorch.Error, match=r"interrupt ended .* Begin a new iterator"):
            next(iterator)


@pytest.mark.parametrize("opened", [opened_accessor, opened_loader])
@pytest.mark.parametrize("before", [0, 3])
def test_an_interrupt_before_any_line_of_iter(opened, before):
    with opened() as source:
        at, broken = 0, True
        while broken:
            old = iter(source)
            numbers(next(old) for _ in range(before))
            _, broken = interrupted(lambda: iter(source), at)
            left = numbers(old)  # ends, with whatever is left
            assert left == sorted(set(left))
            assert numbers(source) == list(range(SIZE))
            at += 1
        assert at > 10


@pytest.mark.parametrize("moment", ["between epochs", "in an epoch"])
def test_persistent_workers_that_died_are_replaced(moment):
    loader = poptorch.DataLoader(
        poptorch.Options(), data.Range(40), 2, num_workers=2, multiprocessing_context="fork"
    )
    batches = iter(loader)
    next(batches)
    if moment == "between epochs":
        list(batches)
    worker = loader._iterator._workers[0]
    worker.kill()
    worker.join()
    if moment == "in an epoch":
        with pytest.raises(RuntimeError, match=r"worker .* (killed by signal|exited unexpectedly)"):
            list(batches)
    for _ in range(2):
        assert [int(n) for _, y in loader for n in y] == list(range(40))
    loader.terminate()


@pytest.mark.parametrize("own", [False, True])
def test_two_threads_share_an_asynchronous_loader(own):
    """Each element comes once, to one of them; nobody waits for ever."""
    with opened_loader() as loader:
        shared, taken = iter(loader), [[], []]

        def take(index):
            taken[index] += numbers(iter(loader) if own else shared)

        for _ in range(3):
            threads = [threading.Thread(target=take, args=[index]) for index in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            together = sorted(taken[0] + taken[1])
            assert own or together == list(range(SIZE))
            assert set(together) == set(range(SIZE))
            taken, shared = [[], []], iter(loader)
        assert numbers(loader) == list(range(SIZE))
