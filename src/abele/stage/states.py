"""What lives all the time, by the parameter that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from abele.program import Program, Role, Slot
from abele.stage.chain import State
from abele.step.replica_groups import ACCUMULATOR


class Slots:
    """The state of captured programs.

    Args:
        programs: all of them.
        accumulates: parameters that are trained have sums of gradients, in any case.
    """

    def __init__(self, programs: Sequence[Program], *, accumulates: bool):
        model = programs[0]
        self._slots = dict(zip((n.name for n in model.placeholders()), model.inputs, strict=True))
        every = {(s.role, s.name): s for program in programs for s in program.inputs}
        self._sums = {
            name.removeprefix(ACCUMULATOR): _bytes(slot)
            for (role, name), slot in every.items()
            if role is Role.ACCUMULATOR
        }
        self._optimizer: dict[str, int] = {}
        for (role, name), slot in every.items():
            if role is Role.OPTIMIZER_STATE:
                owner = name.rpartition(".")[0]
                self._optimizer[owner] = self._optimizer.get(owner, 0) + _bytes(slot)
        self._accumulates = accumulates

    def of(self, node: torch.fx.Node, uses: tuple[int, ...]) -> Iterator[State]:
        """The state behind an input or constant of the first program; nothing for the others."""
        if node.op == "get_attr":
            size = node.meta["val"].nbytes
            yield State(name=str(node.target), weight=size, uses=uses, together=False)
            return
        slot = self._slots[node.name]
        if slot.role is Role.PARAMETER:
            yield State(
                name=slot.name,
                weight=_bytes(slot),
                sums=self._sums_of(slot),
                optimizer=self._optimizer.get(slot.name, 0),
                uses=uses,
            )
        elif slot.role is Role.BUFFER:
            # Who reads what another one writes has to be where it is.
            yield State(name=slot.name, weight=_bytes(slot), uses=uses, together=slot.mutated)

    def _sums_of(self, slot: Slot) -> int:
        trained = slot.name in self._optimizer or slot.mutated
        missing = _bytes(slot) if trained and self._accumulates else 0
        return self._sums.get(slot.name, missing)


def _bytes(slot: Slot) -> int:
    value = torch.empty(slot.shape, dtype=slot.dtype, device="meta")
    return value.numel() * min(value.element_size(), 4)
