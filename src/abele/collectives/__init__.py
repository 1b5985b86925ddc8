"""Multi-process training: rendezvous, agreement on settings, and all-reduce."""

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
    "Collective",
    "Counts",
    "broadcast_bytes",
    "connect",
    "connected",
    "disconnect",
    "gather_bytes",
]
