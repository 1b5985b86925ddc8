"""Instances bring their parts to instance 0, and get what it has read.

Only what `abele.collectives` has is used, so that an instance that is gone ends the wait here too.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from abele.collectives import Collective
from abele.collectives import connected as _connected
from abele.errors import CollectiveError
from popdist._error import CheckpointError
from poptorch import processes, resuming


class Instances:
    """The instances that train one model.

    Args:
        model: their wrapper; it knows how many there are.
    """

    def __init__(self, model: Any) -> None:
        several = resuming.processes_of(model) > 1
        if several:
            processes.connect(model.options)
        self._collective: Collective | None = _connected() if several else None
        self.index = 0 if self._collective is None else self._collective.rank
        self.number = 1 if self._collective is None else self._collective.size

    def agree(self, facts: dict[str, str]) -> None:
        """Sees that all are at the same point.

        Raises:
            popdist.Error: they are not, or one is gone.
        """
        if self._collective is not None:
            with _translated_errors():
                self._collective.agree("the checkpoint", facts)

    def bring(self, part: bytes) -> list[bytes]:
        """The parts of all instances by their index, on every one of them."""
        if self._collective is None:
            return [part]
        with _translated_errors():
            sizes = [int(n) for n in self._collective.gather("parts", str(len(part)))]
            joined = torch.zeros(sum(sizes), dtype=torch.uint8)
            start = sum(sizes[: self.index])
            joined[start : start + len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
            self._collective.all_reduce(joined)  # everybody else's share is zero
        return [each.numpy().tobytes() for each in joined.split(sizes)]

    def from_first(self, data: bytes | None, problem: str = "") -> bytes | None:
        """What instance 0 passes in, on all of them; None if it has nothing.

        Args:
            data: of instance 0.
            problem: why it has failed instead; then all raise this.

        Raises:
            CheckpointError: instance 0 has failed.
        """
        if self._collective is not None:
            size = -1 if data is None else len(data)
            with _translated_errors():
                first = self._collective.gather("outcome", f"{size} {problem}")[0]
            length, _, problem = first.partition(" ")
            if not problem and int(length) >= 0:
                data = self._broadcast(data if self.index == 0 else None, int(length))
        if problem:
            raise CheckpointError(problem)
        return data

    def _broadcast(self, data: bytes | None, size: int) -> bytes:
        assert self._collective is not None
        wire = torch.frombuffer(bytearray(data or size), dtype=torch.uint8) if size else None
        if wire is None:
            return b""
        with _translated_errors():
            self._collective.broadcast(wire)
        return wire.numpy().tobytes()


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """Has errors between instances raised as everywhere in this package."""
    try:
        yield
    except CollectiveError as problem:
        raise processes.problem_between(problem) from problem
