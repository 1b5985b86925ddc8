"""Processes that train together: where they meet, what they agree on, how sums are exchanged."""

from abele.collectives.meeting import TIMEOUT, Place, timeout_s
from abele.collectives.torch_group import (
    Collective,
    Counts,
    broadcast_bytes,
    connect,
    connected,
    disconnect,
    gather_bytes,
)

__all__ = [
    "TIMEOUT",
    "Collective",
    "Counts",
    "Place",
    "broadcast_bytes",
    "connect",
    "connected",
    "disconnect",
    "gather_bytes",
    "timeout_s",
]
