"""Watches a port: its training session says what comes in, what comes out and what changed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import torch

from abele.port.check.channel import BUFFER, PARAMETER, Channel, described, numbers
from abele.port.check.watch import Watch
from abele.runtime.clock import CallRecord
from abele.runtime.observers import Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step.batching import MicroStep
from abele.warn import user_line


class Port(Watch):
    """Watches the training sessions of a script; some go on with the model of an earlier one."""

    def __init__(self, channel: Channel, steps: int):
        super().__init__(channel, steps)
        self._latest: list[Session] = []  # of each model

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, the script is watched."""
        with of_new_sessions(self._observer):
            yield

    def _observer(self, session: Session) -> Observer | None:
        if not session.config.training:
            return None
        models = [number for number, each in enumerate(self._latest) if _goes_on(each, session)]
        return _Calls(self, session, models[-1] if models else None)

    def model_of(self, session: Session, model: int | None) -> int:
        """The number of the model that a session trains from now on; None is a new model."""
        if model is not None:
            self._latest[model] = session
            return model
        self._latest.append(session)
        self.updates.append(0)
        return len(self._latest) - 1


def _goes_on(before: Session, session: Session) -> bool:
    """Whether a session begins with the weights that another has come to: its model, made anew."""
    mine, other = before.params, session.params
    return mine.keys() == other.keys() and all(
        torch.equal(mine[name], each) for name, each in other.items()
    )


class _Calls(Observer):
    """Tells of the calls of a session.

    Args:
        watch: of the script.
        session: the one.
        goes_on: the number of the model that it goes on with; None if its model is a new one.
    """

    def __init__(self, watch: Port, session: Session, goes_on: int | None):
        self._watch, self._session, self._goes_on = watch, session, goes_on
        self._inputs: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._first = 1
        self._model = -1

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Note what comes in."""
        if self._model < 0:
            self._model = self._watch.model_of(self._session, self._goes_on)
            if self._goes_on is None:
                self._tell_start()
        self._first = self._watch.updates[self._model] + 1
        self._inputs = [described(each) for each in inputs]

    def on_update(self, step: MicroStep) -> None:
        """Tell the state after an update."""
        del step
        self._watch.updated(self._model, self._state())

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note the loss."""
        loss = self._session.loss
        self._losses = [] if loss is None else numbers(outputs[loss])

    def on_call_end(self, call: CallRecord) -> None:
        """Tell of the call."""
        if call.error is None:
            self._watch.tell_step(self._model, self._first, self._losses, self._inputs, user_line())
            self._watch.stop_if_enough()

    def _tell_start(self) -> None:
        session, channel = self._session, self._watch.channel
        kinds = dict.fromkeys(session.params, PARAMETER) | dict.fromkeys(session.buffers[0], BUFFER)
        channel.model(self._model, "", self._state(), kinds, {})
        channel.state(self._model, 0, session.params)

    def _state(self) -> dict[str, torch.Tensor]:
        return {**self._session.params, **self._session.buffers[0]}
