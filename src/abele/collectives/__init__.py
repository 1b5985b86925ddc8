"""Processes that train together: where they meet, what they agree on, how sums are exchanged."""

from abele.collectives.meeting import TIMEOUT, Place, timeout_s
from abele.collectives.protocol import Collective, Counts, broadcast_bytes, gather_bytes
from abele.collectives.torch_group import TorchCollective, connect, connected, disconnect

__all__ = [
    "TIMEOUT",
    "Collective",
    "Counts",
    "Place",
    "TorchCollective",
    "broadcast_bytes",
    "connect",
    "connected",
    "disconnect",
    "gather_bytes",
    "timeout_s",
]
