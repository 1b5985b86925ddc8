"""Several instances of a program beside as many processes of its port."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import socket
from collections.abc import Callable, Sequence

from abele.port.check.comparison import Comparison

_HOST = "127.0.0.1"


def of_poprun(index: int, count: int, port: int) -> dict[str, str]:
    """What poprun sets in the environment of an instance that has one replica.

    Args:
        index: of the instance, from 0.
        count: how many there are.
        port: where they meet.
    """
    numbers = {
        "POPDIST_NUM_TOTAL_REPLICAS": count,
        "POPDIST_NUM_LOCAL_REPLICAS": 1,
        "POPDIST_NUM_IPUS_PER_REPLICA": 1,
        "POPDIST_REPLICA_INDEX_OFFSET": index,
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": 1,
        "POPDIST_LOCAL_INSTANCE_INDEX": index,
        "OMPI_COMM_WORLD_SIZE": count,
        "OMPI_COMM_WORLD_RANK": index,
        "OMPI_COMM_WORLD_LOCAL_RANK": index,
    }
    return {name: str(number) for name, number in numbers.items()} | _place(port)


def of_torchrun(index: int, count: int, port: int) -> dict[str, str]:
    """What torchrun sets in the environment of a process; arguments as for ``of_poprun``."""
    numbers = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    variables = {name: str(number) for name, number in numbers.items()}
    return variables | _place(port) | {"TORCHELASTIC_RUN_ID": "check"}


def _place(port: int) -> dict[str, str]:
    """Where they meet, and one thread for each: sums depend on how many there are."""
    return {"MASTER_ADDR": _HOST, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind((_HOST, 0))
        return one.getsockname()[1]


def compared(pairs: Sequence[Callable[[], Comparison]], give_up: Callable[[], None]) -> Comparison:
    """Compare all pairs at the same time, as each instance waits for the others.

    Args:
        pairs: compare one instance with one process each.
        give_up: ends all scripts, so that none waits for one that has failed.

    Returns:
        The comparison of the first pair that differs, or of the first one.

    Raises:
        CheckError: of the first pair that cannot be compared.
    """
    with concurrent.futures.ThreadPoolExecutor(len(pairs)) as threads:
        started = [threads.submit(each) for each in pairs]
        first = concurrent.futures.FIRST_EXCEPTION
        done, rest = concurrent.futures.wait(started, return_when=first)
        failed = [each for each in started if each in done and each.exception() is not None]
        if rest or failed:
            give_up()
    for each in failed:
        each.result()
    results = [each.result() for each in started]
    index = next((i for i, each in enumerate(results) if not each.equal), 0)
    note = (
        f"{len(pairs)} instances were compared with as many processes; the table shows the "
        f"steps of instance {index}"
    )
    return dataclasses.replace(results[index], notes=(*results[index].notes, note))
