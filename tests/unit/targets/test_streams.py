"""The stream of captures, with streams that need no GPU."""

import threading

import pytest
import torch

from abele.targets import streams
from abele.targets.cuda.emitted.gemms import together


class Stream:
    def __init__(self, device=0):
        self.device, self.waited = device, []

    def wait_stream(self, other):
        self.waited.append(other)


@pytest.fixture(name="gpu")
def _gpu(monkeypatch):
    """Which stream is the current one; the first is torch's usual one."""
    current = [Stream()]

    class Within:
        def __init__(self, stream):
            self._stream = stream

        def __enter__(self):
            current.append(self._stream)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(streams, "_of_thread", threading.local())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", Within)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    return current


class Result:
    def __init__(self):
        self.streams = []

    def record_stream(self, stream):
        self.streams.append(stream)


def test_work_is_done_there_between_what_the_current_stream_does(gpu):
    usual, result, seen = gpu[0], Result(), []

    def work():
        seen.append(gpu[-1])
        return [result]

    assert streams.on_capture_stream(work) == [result]
    (there,) = seen
    assert there is streams.capture_stream() is not usual
    assert (there.waited, usual.waited, result.streams) == ([usual], [there], [usual])


def test_work_on_that_stream_stays_there(gpu):
    gpu.append(streams.capture_stream())
    result = Result()
    assert streams.on_capture_stream(lambda: [result]) == [result]
    assert (gpu[-1].waited, result.streams) == ([], [])


def test_each_thread_has_its_own(gpu):
    others = []
    thread = threading.Thread(target=lambda: others.append(streams.capture_stream()))
    thread.start()
    thread.join()
    assert others[0] is not streams.capture_stream()


def test_works_side_by_side_begin_and_end_with_the_current_stream(gpu):
    seen = []
    works = [lambda i=i: seen.append((i, gpu[-1])) for i in range(3)]
    together(works)
    first, second = streams.side_streams(2)
    assert seen == [(1, first), (2, second), (0, gpu[0])]
    assert first.waited == second.waited == [gpu[0]]
    assert gpu[0].waited == [first, second]
    assert streams.capture_stream() not in (first, second)
