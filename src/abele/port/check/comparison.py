"""The result of comparing a port with its original."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

EQUAL, DIFFERENT = 0, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPair:
    """One training step of both.

    Attributes:
        step: its number, from 1; 0 is the start.
        model: which one it updates, by its place among the comparison's models.
        original: losses that backward began from; several where gradients are accumulated.
        port: losses that the call returned; none if it returns only those of a later step.
        same_batch: whether the model's inputs are the same tensors; None if that cannot be told.
        differing: parameters and buffers that differ after it, by the original's names.
        lines: the user's lines that made the step, in the original and in the port.
        turned: the port is in plain PyTorch, and the original is not.
    """

    step: int
    original: tuple[float, ...]
    port: tuple[float, ...]
    same_batch: bool | None
    differing: tuple[str, ...]
    lines: tuple[str, str]
    model: int = 0
    turned: bool = False

    @property
    def same_loss(self) -> bool | None:
        """Whether the losses are equal bit for bit; None if the port does not tell its own."""
        if not self.port or not self.original:
            return None
        if self.turned:
            return same_losses(self.port, self.original)
        return same_losses(self.original, self.port)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Where the two part.

    Attributes:
        step: the first step that differs; 0 if the models differ before their first update.
        kind: ``parameter``, ``buffer``, ``loss``, or ``steps`` if one of them makes fewer.
        name: of the tensor in the original; empty for a loss.
        far: norm of the difference relative to that of the original's tensor, if known.
        lines: the user's lines in the original and in the port, empty where unknown.
        meaning: what to look at.
        model: the name of the model; empty if both train one only.
    """

    step: int
    kind: str
    name: str
    far: float | None
    lines: tuple[str, str]
    meaning: str
    model: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A port beside its original.

    Attributes:
        steps: the steps that both made, as far as they were compared.
        difference: where they first part; None if all is equal, bit for bit.
        compared: how many tensors were compared beside the loss.
        notes: what was changed or left out, in words.
        models: names of the models that were trained, in the order of their first updates.
    """

    steps: tuple[StepPair, ...]
    difference: Difference | None
    compared: int
    notes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every loss, parameter and buffer is the same, bit for bit."""
        return self.difference is None

    def turned(self) -> Comparison:
        """The same, where the original was taken for the port and the port for the original."""
        first = self.difference
        return Comparison(
            steps=tuple(
                dataclasses.replace(
                    each,
                    original=each.port,
                    port=each.original,
                    lines=(each.lines[1], each.lines[0]),
                    turned=not each.turned,
                )
                for each in self.steps
            ),
            difference=first
            and dataclasses.replace(
                first, lines=(first.lines[1], first.lines[0]), meaning=_turned(first.meaning)
            ),
            compared=self.compared,
            notes=tuple(map(_turned, self.notes)),
            models=self.models,
        )

    @property
    def status(self) -> int:
        """Exit status of a command: 0 equal, 1 different."""
        return EQUAL if self.equal else DIFFERENT

    def __str__(self) -> str:
        from abele.port.check.text import text

        return text(self)


def _turned(text: str) -> str:
    """A text with ``original`` for ``port`` and ``port`` for ``original``."""
    other = {"original": "port", "port": "original"}
    return re.sub(r"\b(original|port)\b", lambda match: other[match.group()], text)


def same_losses(original: Sequence[float], port: Sequence[float]) -> bool:
    """Whether losses are equal; an original that accumulates may divide by the number of parts.

    Args:
        original: of one update.
        port: all of one update, or the last one.
    """
    parts = len(original)
    compared = original[-len(port) :]
    if len(compared) != len(port):
        return False
    return any(
        all(_same(factor * mine, other) for mine, other in zip(compared, port, strict=True))
        for factor in {1, parts}
    )


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
