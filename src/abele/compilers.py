"""Processes of C++ compilers, which an interrupt of this program ends with their children."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

_running: set[subprocess.Popen[str]] = set()


@contextlib.contextmanager
def compiler_pool(threads: int | None) -> Generator[ThreadPoolExecutor]:
    """Open a pool of threads that run compilers; an interrupt ends the compilers immediately."""
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            ending = threading.Thread(target=pool.shutdown)
            ending.start()
            while ending.is_alive():  # a thread may start its compiler only now
                for process in list(_running):
                    _end(process)
                ending.join(0.05)
            raise


def run_compiler(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler with captured output, in a process group that an interrupt ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        encoding="utf-8",
        errors="backslashreplace",
        process_group=0,  # a killed driver alone leaves the compiler that it has started
    ) as process:
        _running.add(process)
        try:
            output, errors = process.communicate()
        except BaseException:
            _end(process)
            process.wait()  # on an interrupt, leaving the block does not
            raise
        finally:
            _running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)  # on which compilers delete their temporary files
