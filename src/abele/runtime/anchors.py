"""Tensors from inside the programs that somebody asked to see, kept from one call to the next.

Each has an output mode of its own. A value of the model's program exists once per micro-batch. One
of the update (a new weight, optimizer state) exists once per update and is the same in every
replica; it is counted once per replica, so that shapes follow the same rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from abele.program import Program, Role
from abele.step import batching
from abele.step.config import OutputMode, StepConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Anchor:
    """A tensor whose values are kept.

    Attributes:
        name: what it is fetched by.
        tensor: its name in the programs, one of ``Captured.tensor_names``.
        mode: which of its values are kept; ``None`` keeps those that the model's outputs keep.
        period: with ``EVERY_N``, one device iteration in this many.
    """

    name: str
    tensor: str
    mode: OutputMode | None = None
    period: int = 1


class AnchorStore:
    """The anchored tensors among the results of programs.

    Args:
        anchors: what to keep.
        model: the program that runs at every micro-step.
        apply: the program that runs at every update, if it is another one.
        config: the schedule of a call.
    """

    def __init__(
        self, anchors: Sequence[Anchor], model: Program, apply: Program | None, config: StepConfig
    ):
        self._replicas = config.replicas
        self._outputs = sum(slot.role is Role.OUTPUT for slot in model.outputs)
        self._configs = {anchor.name: _own_config(anchor, config) for anchor in anchors}
        self._keeps = {
            name: [step.keeps for step in batching.schedule(anchor_config)]
            for name, anchor_config in self._configs.items()
        }
        self._of_model = _positions(anchors, model)
        self._of_apply = _positions(anchors, apply)
        self._kept: dict[str, list[torch.Tensor]] = {}
        self._last, self._complete = max(step.index for step in batching.schedule(config)), False

    def begin(self) -> None:
        """Drop the values of the call before."""
        self._complete = False
        self._kept = {name: [] for name in self._configs}

    def take(
        self, index: int, outputs: list[torch.Tensor], applied: list[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        """Store anchored tensors and return the outputs of the model alone.

        Args:
            index: which micro-step of the call.
            outputs: what the model's program returned.
            applied: what the update's returned, if it ran.
        """
        for name, position in self._of_model.items():
            if self._keeps[name][index]:
                self._kept[name].append(outputs[position])
        for name, position in self._of_apply.items():
            if applied is not None and self._keeps[name][index]:
                self._kept[name] += [applied[position]] * self._replicas
        self._complete = index == self._last
        return outputs[: self._outputs]

    def kept(self, name: str) -> tuple[list[torch.Tensor], StepConfig] | None:
        """Return the values of the last call and how they combine; None if it did not end."""
        values = self._kept.get(name) if self._complete else None
        return (values, self._configs[name]) if values else None


def _own_config(anchor: Anchor, config: StepConfig) -> StepConfig:
    if anchor.mode is None:
        return config
    anchor_config = dataclasses.replace(
        config, output_mode=anchor.mode, output_period=anchor.period
    )
    batching.check_output_period(anchor_config)
    return anchor_config


def _positions(anchors: Sequence[Anchor], program: Program | None) -> Mapping[str, int]:
    outputs = () if program is None else program.outputs
    at = {s.name: i for i, s in enumerate(outputs) if s.role is Role.ANCHOR}
    return {anchor.name: at[anchor.tensor] for anchor in anchors if anchor.tensor in at}
