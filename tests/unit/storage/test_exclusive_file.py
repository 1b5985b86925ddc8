"""Files that one process holds, until it ends, however it ends."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from abele.storage.files import exclusive_file

HOLDER = """
import os, sys, time
from pathlib import Path
from abele.storage.files import exclusive_file
with exclusive_file(Path(sys.argv[1])):
    child = os.fork()
    if not child:  # as a worker of a loader that outlives its process
        time.sleep(600)
    print(child, flush=True)
    time.sleep(600)
"""


def test_a_file_is_held_by_one_process_until_that_is_killed(tmp_path):
    file = tmp_path / "log"
    command = [sys.executable, "-c", HOLDER, file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(BlockingIOError), exclusive_file(file):
                pass
            holder.kill()
            holder.wait()
            with exclusive_file(file):
                os.kill(child, 0)  # the child is still there
        finally:
            os.kill(child, signal.SIGKILL)


def test_where_a_file_system_knows_no_locks_nobody_is_kept_away(tmp_path, monkeypatch):
    def without(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", without)
    with exclusive_file(tmp_path / "log"):
        assert (tmp_path / "log").exists()
