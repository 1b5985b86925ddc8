"""Multi-process training: rendezvous, agreement on settings, and all-reduce."""

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
