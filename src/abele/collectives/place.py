"""Which of how many processes this is, and where they meet; read from the environment.

The variables are those of ``torch.distributed``'s ``env://``, which launchers and many
clusters set.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Self

from abele.errors import MeetingPointError, PlaceError

#: Seconds until a process that does not come, or is not heard of, counts as lost.
TIMEOUT = "ABELE_RANK_TIMEOUT"
#: What the processes of one run have in common and nobody else knows; a launcher makes it.
SECRET = "ABELE_RUN_SECRET"
_DEFAULT_TIMEOUT_S = 60.0
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """One process among others.

    Attributes:
        rank: which one, from 0.
        size: how many there are.
        address: host on which rank 0, or a launcher, keeps the store.
        port: its TCP port.
        local_rank: which one on this host.
        hosts_store: this process keeps the store; otherwise it connects to it.
        attempt: how often a launcher has restarted the run.
        timeout_s: see ``TIMEOUT``.
        secret: see ``SECRET``; empty where there is none.
    """

    rank: int
    size: int
    address: str
    port: int
    local_rank: int
    hosts_store: bool
    attempt: str
    timeout_s: float
    secret: str = dataclasses.field(default="", repr=False)

    @classmethod
    def of_environment(cls, rank: int, size: int, local_ranks: Sequence[str] = ()) -> Self:
        """Return the place of a process that knows its number from elsewhere.

        Args:
            rank: as the front-end was told.
            size: likewise.
            local_ranks: further variables in which a launcher says which process of the host
                this is.

        Raises:
            PlaceError: no meeting point is known, or ``RANK`` and ``WORLD_SIZE`` say otherwise.
        """
        for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
            number = _number(name)
            if number is not None and number != value:
                raise PlaceError(
                    f"{name}={number}, but the options say {value} (process {rank} of {size}). "
                    "Start the program with one launcher alone, or unset what an earlier run left "
                    "in the environment."
                )
        address, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT")
        if not address or port is None:
            raise MeetingPointError(
                f"Process {rank} of {size} does not know where to meet the others: MASTER_ADDR "
                "and MASTER_PORT are not set. Start the program with a launcher, which sets them, "
                "or set them to a host and a free port of rank 0.",
                size,
            )
        names = (*_LOCAL_RANKS, *local_ranks)
        local = next((n for name in names if (n := _number(name)) is not None), rank)
        by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(
            rank=rank,
            size=size,
            address=address,
            port=port,
            local_rank=local,
            hosts_store=rank == 0 and not by_launcher,
            attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
            timeout_s=timeout_s(),
            secret=os.environ.get(SECRET, ""),
        )


def timeout_s() -> float:
    """Return seconds until a process counts as lost.

    Raises:
        PlaceError: the variable holds no positive number.
    """
    text = os.environ.get(TIMEOUT)
    if text is None:
        return _DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise PlaceError(f"{TIMEOUT}={text!r} should be a number of seconds, more than 0")
    return seconds


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise PlaceError(f"{name}={text!r} should be an integer, 0 or more")
    return int(text)
