"""Watches a port that runs the sections of its step by itself, all three in one run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Mapping
from typing import Any

import torch

from abele.capture.sections import STEP, gradient_of_output
from abele.port.check.channel import BUFFER, PARAMETER, Channel, described, numbers
from abele.port.check.watch import Watch
from abele.runtime.sections import SectionSession
from abele.warn import user_line


class Sections(Watch):
    """Watches the sessions of a script whose programs are whole steps, one for each model."""

    def __init__(self, channel: Channel, steps: int):
        super().__init__(channel, steps)
        self._sessions: list[SectionSession] = []

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, the script is watched."""
        plain: Any = SectionSession.run

        @functools.wraps(plain)
        def run(session: SectionSession, name: str, inputs: Mapping[str, torch.Tensor]) -> Any:
            if name != STEP:
                return plain(session, name, inputs)
            return self._step(session, plain, inputs)

        setattr(SectionSession, "run", run)  # noqa: B010 - for all sessions of the process
        try:
            yield
        finally:
            setattr(SectionSession, "run", plain)  # noqa: B010

    def _step(
        self, session: SectionSession, plain: Any, inputs: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not any(each is session for each in self._sessions):
            self._begin(session)
        model = next(n for n, each in enumerate(self._sessions) if each is session)
        described_inputs = [described(value) for name, value in inputs.items() if _is_input(name)]
        outputs: dict[str, torch.Tensor] = plain(session, STEP, inputs)
        self.updated(model, _state(session))
        losses = _losses(inputs, outputs)
        self.tell_step(model, self.updates[model], losses, described_inputs, user_line())
        self.stop_if_enough()
        return outputs

    def _begin(self, session: SectionSession) -> None:
        self._sessions.append(session)
        self.updates.append(0)
        model = len(self._sessions) - 1
        kinds = dict.fromkeys(session.params, PARAMETER) | dict.fromkeys(session.buffers[0], BUFFER)
        self.channel.model(model, "", _state(session), kinds, {})
        self.channel.state(model, 0, session.params)


def _state(session: SectionSession) -> dict[str, torch.Tensor]:
    return {**session.params, **session.buffers[0]}


def _is_input(name: str) -> bool:
    return name.startswith("input") and name.removeprefix("input").isdigit()


def _losses(inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> list[float]:
    """The outputs for which there is a gradient: backward begins from them."""
    return [
        number
        for index in range(len(outputs))
        if gradient_of_output(index) in inputs and f"output{index}" in outputs
        for number in numbers(outputs[f"output{index}"])
    ]
