"""Reads what a script that is compared reports of its updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from abele.port.check.channel import GO
from abele.port.check.process import Script

#: A model, by its number, after so many of its updates; 0 is its start.
State = tuple[int, int]


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


@dataclasses.dataclass
class Model:
    """What a script has reported of one model.

    Attributes:
        name: of it; empty if it is not known.
        tensors: shape, kind and line of each by name.
    """

    name: str = ""
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


class Messages:
    """Reads the messages of a script.

    Args:
        script: runs.

    Attributes:
        script: as given.
        models: in the order of their first updates.
        digests: of a model's tensors, by state.
        order: states after updates, in the order in which they were made.
        updates: by the state after it.
        waiting: the state that the script waits with; None if it does not wait.
        notes: in words, each once.
        ended: it has ended by itself.
    """

    def __init__(self, script: Script):
        self.script = script
        self.models: list[Model] = []
        self.digests: dict[State, dict[str, str]] = {}
        self.order: list[State] = []
        self.updates: dict[State, Update] = {}
        self.waiting: State | None = None
        self.notes: list[str] = []
        self.ended = False

    def reach_state(self) -> State | None:
        """Read until the script waits with a state, and return it; None if it ends before."""
        while self.waiting is None and not self.ended:
            self._read()
        return self.waiting

    def go_on(self) -> None:
        """Let the script go on after the state that it waits with."""
        self.waiting = None
        self.script.answer(GO)

    def save(self, path: str) -> None:
        """Have the script save the tensors of that state, and go on."""
        self.waiting = None
        self.script.answer(path)
        while self._read() != "saved":
            pass

    def finish(self) -> None:
        """Read what a script still reports of updates whose states are known."""
        while self.order and self.order[-1] not in self.updates and not self.ended:
            if self.waiting is not None:
                self.go_on()
            self._read()

    def _read(self) -> str:
        message = self.script.message()
        kind: str = message["kind"]
        if kind == "model":
            self._add_model(message)
        elif kind == "state":
            self.waiting = message["model"], message["step"]
            self.digests[self.waiting] = message["digests"]
            if message["step"]:
                self.order.append(self.waiting)
        elif kind == "step":
            self._add_updates(message)
        elif kind == "note" and message["text"] not in self.notes:
            self.notes.append(message["text"])
        elif kind == "end":
            self.ended = True
        return kind

    def _add_model(self, message: Mapping[str, Any]) -> None:
        if message["model"] == len(self.models):
            self.models.append(Model())
        number: int = message["model"]
        self.models[number].name = message["name"]
        self.models[number].tensors.update(message["tensors"])

    def _add_updates(self, message: Mapping[str, Any]) -> None:
        first, last = message["first"], message["last"]
        losses, count = tuple(message["losses"]), last - first + 1
        each, rest = divmod(len(losses), count)
        for position, step in enumerate(range(first, last + 1)):
            if each and not rest:
                mine = losses[each * position : each * (position + 1)]
            else:
                mine = losses if step == last else ()
            self.updates[message["model"], step] = Update(
                losses=mine, inputs=tuple(message["inputs"]), alone=count == 1, line=message["line"]
            )
