"""Starts a Python file as several instances on this machine, and leaves none behind."""

import concurrent.futures
import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.warm_python import python

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Ended:
    """One instance that has ended."""

    status: int
    out: str
    err: str


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        return result.getsockname()[1]


def together(of: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Calls a function for each at the same time, in threads that stand for processes."""
    with concurrent.futures.ThreadPoolExecutor(len(of)) as pool:
        return [one.result(30) for one in [pool.submit(function, item) for item in of]]


def environment(index: int, instances: int, port: int, replicas: int = 1) -> dict[str, str]:
    """What poprun tells one instance."""
    told = {
        "POPDIST_NUM_TOTAL_REPLICAS": instances * replicas,
        "POPDIST_NUM_IPUS_PER_REPLICA": 1,
        "POPDIST_NUM_LOCAL_REPLICAS": replicas,
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": 1,
        "POPDIST_REPLICA_INDEX_OFFSET": index * replicas,
        "POPDIST_LOCAL_INSTANCE_INDEX": index,
        "OMPI_COMM_WORLD_SIZE": instances,
        "OMPI_COMM_WORLD_RANK": index,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
        "ABELE_TARGET": "reference",
        "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, str(HERE.parent)])),
    }
    return {name: str(value) for name, value in told.items()}


@contextlib.contextmanager
def started(
    file: Path,
    arguments: Sequence[str],
    instances: int,
    *,
    only: Sequence[int] | None = None,
    replicas: int = 1,
    changed: Mapping[str, str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Instances that run; killed at the end, whatever happens.

    Args:
        file: the program.
        arguments: for it.
        instances: how many there are.
        only: start only these of them.
        replicas: of each instance.
        changed: environment variables besides those of poprun.
    """
    port = free_port()
    running = []
    try:
        for index in range(instances) if only is None else only:
            told = environment(index, instances, port, replicas)
            running.append(
                subprocess.Popen(
                    [python(), file, *arguments],
                    env={**os.environ, **told, **(changed or {})},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def results(running: Sequence[subprocess.Popen[str]], within_s: float = 120.0) -> list[Ended]:
    """Waits until all have ended; fails the test if they do not in time."""
    until = time.monotonic() + within_s
    ended = []
    for process in running:
        out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
        ended.append(Ended(process.returncode, out, err))
    return ended


def run(file: Path, arguments: Sequence[str], instances: int, **settings) -> list[Ended]:
    """Starts instances and waits for them; all must succeed."""
    with started(file, arguments, instances, **settings) as running:
        ended = results(running)
    for one in ended:
        assert one.status == 0, one.err
    return ended
