"""The interface of a session to the processes that train with it, for any transport."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import torch


@dataclasses.dataclass
class Counts:
    """Counts of what this process has exchanged.

    Attributes:
        calls: all-reduces and broadcasts.
        bytes: of the tensors given to them; what travels per link depends on the algorithm.
        seconds: in them, which includes waiting for slower processes.
    """

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Collective(Protocol):
    """Processes that call the same methods in the same order.

    Attributes:
        rank: which one this is, from 0.
        size: how many there are.
        counts: what this process has exchanged.
    """

    rank: int
    size: int
    counts: Counts

    def all_reduce(self, values: torch.Tensor, topic: str = "") -> None:
        """Replace a contiguous tensor by its sum over all processes.

        Args:
            values: of one shape everywhere; every process ends with the same bits.
            topic: what it belongs to; a process that has ``leave``d this never comes.

        Raises:
            RankLostError: a process is gone.
        """
        ...

    def broadcast(self, values: torch.Tensor) -> None:
        """Replace a contiguous tensor by that of rank 0.

        Raises:
            RankLostError: a process is gone.
        """
        ...

    def gather(self, topic: str, text: str) -> list[str]:
        """Return every process's text by rank; for short ones, and not in every step.

        Raises:
            RankLostError: a process is gone or does not come.
        """
        ...

    def agree(self, topic: str, facts: Mapping[str, str]) -> None:
        """Compare what all processes must have in common.

        Args:
            topic: what the facts are about, for messages.
            facts: names and values as they are shown.

        Raises:
            DisagreementError: names the first ranks and facts that differ, and their values.
            RankLostError: a process is gone or does not come.
        """
        ...

    def tell(self, topic: str, text: str) -> None:
        """Leave a note for the others, who may look for it."""
        ...

    def notes(self, topic: str) -> dict[int, str]:
        """Return the notes of this topic by rank."""
        ...

    def leave(self, topic: str, why: str) -> None:
        """Announce that this process takes no further part in exchanges of a topic."""
        ...


def gather_bytes(collective: Collective, topic: str, part: bytes) -> list[bytes]:
    """Return the bytes of every process by rank, on every process."""
    sizes = [int(size) for size in collective.gather(topic, str(len(part)))]
    joined = torch.zeros(sum(sizes), dtype=torch.uint8)
    if part:
        start = sum(sizes[: collective.rank])
        joined[start : start + len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
    collective.all_reduce(joined)  # the slices of other processes are zero
    return [each.numpy().tobytes() for each in torch.split(joined, sizes)]


def broadcast_bytes(collective: Collective, topic: str, data: bytes | None) -> bytes:
    """Return the bytes of rank 0 on every process; other processes pass None."""
    size = int(collective.gather(topic, str(len(data or b"")))[0])
    if not size:
        return b""
    wire = torch.frombuffer(
        bytearray(data if collective.rank == 0 and data else size), dtype=torch.uint8
    )
    collective.broadcast(wire)
    return wire.numpy().tobytes()
