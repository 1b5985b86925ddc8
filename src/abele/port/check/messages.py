"""Reads what a script that is compared reports of its updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from abele.port.check.channel import GO
from abele.port.check.process import Script


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """What a script has reported of one update.

    Attributes:
        losses: of it; none where a call of several updates returns only the last one's.
        inputs: shape and digest of each input of the model; of the whole call.
        alone: its call made no other update.
        line: the user's line that made it.
    """

    losses: tuple[float, ...]
    inputs: tuple[Mapping[str, Any], ...]
    alone: bool
    line: str


class Messages:
    """Reads the messages of a script.

    Args:
        script: runs.

    Attributes:
        script: as given.
        tensors: shape, kind and line of each tensor by name.
        digests: of its tensors after each step, by step.
        updates: by step.
        notes: in words, each once.
        ended: it has ended by itself.
    """

    def __init__(self, script: Script):
        self.script = script
        self.tensors: dict[str, dict[str, Any]] = {}
        self.digests: dict[int, dict[str, str]] = {}
        self.updates: dict[int, Update] = {}
        self.notes: list[str] = []
        self.ended = False

    def reach(self, step: int) -> bool:
        """Read until the state after a step is there; False if the script ends before."""
        while step not in self.digests and not self.ended:
            self._read()
        return step in self.digests

    def go_on(self) -> None:
        """Let the script go on after the state that it has reported last."""
        self.script.answer(GO)

    def save(self, path: str) -> None:
        """Have the script save the tensors of that state, and go on."""
        self.script.answer(path)
        while self._read() != "saved":
            pass

    def finish(self, step: int) -> None:
        """Read what a script still reports of a step."""
        while step not in self.updates and not self.ended:
            if self._read() == "state":
                self.go_on()

    def _read(self) -> str:
        message = self.script.message()
        kind: str = message["kind"]
        if kind == "model":
            self.tensors |= message["tensors"]
        elif kind == "state":
            self.digests[message["step"]] = message["digests"]
        elif kind == "step":
            self._add_updates(message)
        elif kind == "note" and message["text"] not in self.notes:
            self.notes.append(message["text"])
        elif kind == "end":
            self.ended = True
        return kind

    def _add_updates(self, message: Mapping[str, Any]) -> None:
        first, last = message["first"], message["last"]
        losses, count = tuple(message["losses"]), last - first + 1
        each, rest = divmod(len(losses), count)
        for position, step in enumerate(range(first, last + 1)):
            if each and not rest:
                mine = losses[each * position : each * (position + 1)]
            else:
                mine = losses if step == last else ()
            self.updates[step] = Update(
                losses=mine, inputs=tuple(message["inputs"]), alone=count == 1, line=message["line"]
            )
