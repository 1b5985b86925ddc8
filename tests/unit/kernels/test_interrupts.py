"""An interrupt ends the compilers of kernels with the processes that they have started."""

import os
import signal
import threading
import time

import pytest

from abele import compilers
from abele.kernels import build
from abele.storage import temporary

LIMIT_S = 10.0
COMPILER = """#!/bin/sh
case $1 in --version | -fopenmp) exit ;; esac
sleep 60 &
echo $! >> {noted}
wait
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a compiler whose child sleeps, and the file of its children's process IDs."""
    noted = tmp_path / "children"
    path = tmp_path / "compiler"
    path.write_text(COMPILER.format(noted=noted))
    path.chmod(0o755)
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(build, "cache_folder", lambda: cache)
    monkeypatch.setattr(build.packaged, "folder", lambda: None)
    return str(path), noted


def interrupted(noted, call):
    """Interrupt a call once its first compiler has a child; return the seconds until it ends."""
    sent = []

    def interrupt():
        while not (noted.exists() and noted.read_text().endswith("\n")):
            time.sleep(0.02)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    sender.join()
    return time.monotonic() - sent[0]


def runs(process):
    """Whether a process still runs a moment later; a signal takes its time."""
    for _ in range(100):
        if temporary.started(process) is None:
            return False
        time.sleep(0.05)
    return True


def test_an_interrupt_ends_compilers_of_a_pool(compiler):
    path, noted = compiler
    names = list(build.KERNELS)[:6]
    took = interrupted(noted, lambda: build.compile_objects(path, "here", names))
    assert took < LIMIT_S
    children = noted.read_text().split()
    assert len(children) < len(names), "files in the queue were compiled as well"
    assert not any(map(runs, children))


def test_an_interrupt_ends_a_compiler_that_the_main_thread_runs(compiler):
    path, noted = compiler
    took = interrupted(noted, lambda: compilers.run_compiler([path]))
    assert took < LIMIT_S
    assert not any(map(runs, noted.read_text().split()))
