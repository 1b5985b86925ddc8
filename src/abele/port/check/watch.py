"""What the watchers of an original and of a port share."""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from abele.port.check.channel import Channel
from abele.warn import user_line


class Enough(BaseException):
    """As many steps were made as were asked for."""


class Watch(ABC):
    """Tells what a script does.

    Args:
        channel: where it tells.
        steps: how many steps are of interest.

    Attributes:
        channel: as given.
        steps: as given.
        updates: how many there were, by the number of the model.
    """

    def __init__(self, channel: Channel, steps: int):
        self.channel, self.steps = channel, steps
        self.updates: list[int] = []

    @abstractmethod
    def watching(self) -> contextlib.AbstractContextManager[None]:
        """While open, the script is watched."""

    def finish(self) -> None:
        """Tell what is only known when the script has ended by itself."""
        return

    @property
    def made(self) -> int:
        """How many updates there were, of all models."""
        return sum(self.updates)

    def updated(self, model: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tell the state of a model after one more update."""
        self.updates[model] += 1
        self.channel.state(model, self.updates[model], tensors)

    def tell_step(
        self,
        model: int,
        first: int,
        losses: Sequence[float],
        inputs: Sequence[Mapping[str, Any]],
        line: str,
    ) -> None:
        """Tell of a model's updates from ``first`` to the present one."""
        last = self.updates[model]
        self.channel.send(
            "step", model=model, first=first, last=last, losses=losses, inputs=inputs, line=line
        )

    def stop_if_enough(self) -> None:
        """End the script if all steps were made.

        Raises:
            Enough: they were.
        """
        if self.made >= self.steps:
            raise Enough


class LinesOfParameters:
    """Knows the user's line that made each parameter."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[weakref.ref[Any], str]] = {}

    @contextlib.contextmanager
    def noting(self) -> Generator[None]:
        """While open, parameters that modules get are noted."""

        def note(module: torch.nn.Module, name: str, parameter: Any) -> None:
            del module, name
            if parameter is not None and self.of(parameter) == "":
                self._lines[id(parameter)] = weakref.ref(parameter), user_line()

        handle: Any = register_module_parameter_registration_hook(note)
        try:
            yield
        finally:
            handle.remove()

    def of(self, tensor: torch.Tensor) -> str:
        """The line, or nothing."""
        reference, line = self._lines.get(id(tensor), (None, ""))
        return line if reference is not None and reference() is tensor else ""
