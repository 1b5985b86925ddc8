"""How instances ended."""

import contextlib
import dataclasses
import signal
from collections.abc import Sequence

from popdist._run.instances import shim

SILENT = "silent"  # what killed the instance killed its shim, too


@dataclasses.dataclass(frozen=True)
class Ending:
    """How an instance ended, as its shim tells.

    Args:
        rank: The instance.
        kind: One of the shim's words for it.
        value: Exit status or signal number.
        seconds: Time of its host, since the epoch.
    """

    rank: int
    kind: str
    value: int
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether it is neither a success nor the doing of poprun."""
        return self.kind != shim.STOPPED and (self.kind, self.value) != (shim.EXITED, 0)

    @property
    def status(self) -> int:
        """Exit status as shells count."""
        return 128 + self.value if self.kind == shim.KILLED else self.value


def how(ending: Ending) -> str:
    """Return how an instance ended, as the end of a sentence."""
    if ending.kind == shim.KILLED:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(ending.value).name} (signal {ending.value})"
        return f"was killed by signal {ending.value}"
    if ending.kind == shim.MISSING:
        return "could not be started"
    if ending.kind == shim.SSH:
        return f"lost its connection (ssh ended with status {ending.value})"
    if ending.kind == SILENT:
        return "was killed together with its shim"
    return f"ended with exit status {ending.value}"


def first(endings: Sequence[Ending], count: int, one_host: bool) -> Ending | None:
    """Return the failure that came first; None if there is none.

    Args:
        endings: In the order of their arrival.
        count: Number of instances.
        one_host: Whether one clock tells all times; otherwise the order of arrival has to do.
    """
    failed = [ending for ending in endings if ending.failed]
    if failed:
        return min(failed, key=lambda ending: ending.seconds) if one_host else failed[0]
    silent = set(range(count)) - {ending.rank for ending in endings}
    return Ending(min(silent), SILENT, 1, 0.0) if silent else None
