"""Watches a port: its training session says what comes in, what comes out and what changed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import torch

from abele.port.check.channel import BUFFER, PARAMETER, described, numbers
from abele.port.check.watch import Watch
from abele.runtime.clock import CallRecord
from abele.runtime.observers import Observer, of_new_sessions
from abele.runtime.session import Session
from abele.step.batching import MicroStep
from abele.warn import user_line


class Port(Watch):
    """Watches the first training session of a script, and those that go on with its model."""

    _session: Session | None = None

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, the script is watched."""
        with of_new_sessions(self._observer):
            yield

    def _observer(self, session: Session) -> Observer | None:
        if not session.config.training:
            return None
        before, made_anew = self._session, False
        if before is not None:
            made_anew = _goes_on(before, session)
            if not made_anew:
                self.channel.send(
                    "note", text="the port compiles a second training model, which was not compared"
                )
                return None
        self._session = session
        return _Calls(self, session, made_anew)


def _goes_on(before: Session, session: Session) -> bool:
    """Whether a session begins with the weights that another has come to: its model, made anew."""
    mine, other = before.params, session.params
    return mine.keys() == other.keys() and all(
        torch.equal(mine[name], each) for name, each in other.items()
    )


class _Calls(Observer):
    """Tells of the calls of a session."""

    def __init__(self, watch: Port, session: Session, started: bool):
        self._watch, self._session = watch, session
        self._inputs: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._first = 1
        self._started = started

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Note what comes in."""
        if not self._started:
            self._started = True
            self._tell_start()
        self._first = self._watch.step + 1
        self._inputs = [described(each) for each in inputs]

    def on_update(self, step: MicroStep) -> None:
        """Tell the state after an update."""
        del step
        self._watch.updated(self._state())

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note the loss."""
        loss = self._session.loss
        self._losses = [] if loss is None else numbers(outputs[loss])

    def on_call_end(self, call: CallRecord) -> None:
        """Tell of the call."""
        if call.error is None:
            self._watch.tell_step(self._first, self._losses, self._inputs, user_line())
            self._watch.stop_if_enough()

    def _tell_start(self) -> None:
        session, channel = self._session, self._watch.channel
        kinds = dict.fromkeys(session.params, PARAMETER) | dict.fromkeys(session.buffers[0], BUFFER)
        channel.model(self._state(), kinds, {})
        channel.state(0, session.params)

    def _state(self) -> dict[str, torch.Tensor]:
        return {**self._session.params, **self._session.buffers[0]}
