"""The connection of this process to the processes it trains with, of which there is one."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence

from abele.collectives.place import Place
from abele.collectives.torch_group import TorchCollective
from abele.errors import PlaceError

_lock = threading.Lock()
_connected: TorchCollective | None = None


def connect(rank: int, size: int, local_ranks: Sequence[str] = ()) -> TorchCollective:
    """Connect with the other processes, once; later calls return the same.

    Args:
        rank: number of this process.
        size: how many there are.
        local_ranks: see ``Place.of_environment``.

    Raises:
        PlaceError: the environment does not tell where to meet, or contradicts this.
        RankLostError: a process does not come in time.
        DisagreementError: processes of other versions.
    """
    global _connected
    with _lock:
        if _connected is None:
            _connected = TorchCollective(Place.of_environment(rank, size, local_ranks))
            atexit.register(disconnect)
        elif (_connected.rank, _connected.size) != (rank, size):
            raise PlaceError(
                f"This process is connected as {_connected.rank} of {_connected.size}, and now "
                f"asked to be {rank} of {size}. All wrappers of a program share one place."
            )
        return _connected


def connected() -> TorchCollective | None:
    """Return the connection, if there is one."""
    return _connected


def disconnect() -> None:
    """Say goodbye to the others; the interpreter's exit does it by itself."""
    global _connected
    with _lock:
        connection, _connected = _connected, None
    if connection is not None:
        atexit.unregister(disconnect)
        connection.close()
