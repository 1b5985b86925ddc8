"""State that is always live, by the parameter that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from abele.program import Program, Role, Slot
from abele.stage.chain import State
from abele.stage.sizes import bytes_of
from abele.step.replica_groups import ACCUMULATOR


class Slots:
    """The state of captured programs.

    Args:
        programs: all of them.
        accumulates: parameters that are trained have sums of gradients, in any case.
        widest: as for ``bytes_of``.
    """

    def __init__(self, programs: Sequence[Program], *, accumulates: bool, widest: int | None):
        model, self._widest = programs[0], widest
        self._slots = dict(zip((n.name for n in model.placeholders()), model.inputs, strict=True))
        every = {(s.role, s.name): s for program in programs for s in program.inputs}
        self._sums = {
            name.removeprefix(ACCUMULATOR): self._bytes(slot)
            for (role, name), slot in every.items()
            if role is Role.ACCUMULATOR
        }
        self._optimizer: dict[str, int] = {}
        for (role, name), slot in every.items():
            if role is Role.OPTIMIZER_STATE:
                owner = name.rpartition(".")[0]
                self._optimizer[owner] = self._optimizer.get(owner, 0) + self._bytes(slot)
        self._accumulates = accumulates

    def of(self, node: torch.fx.Node, uses: tuple[int, ...]) -> Iterator[State]:
        """Return the state of an input or constant of the first program; None for others."""
        if node.op == "get_attr":
            size = bytes_of(node.meta["val"], self._widest)
            yield State(name=str(node.target), weight=size, uses=uses, together=False)
            return
        slot = self._slots[node.name]
        if slot.role is Role.PARAMETER:
            yield State(
                name=slot.name,
                weight=self._bytes(slot),
                sums=self._sums_of(slot),
                optimizer=self._optimizer.get(slot.name, 0),
                uses=uses,
            )
        elif slot.role is Role.BUFFER:
            # Who reads what another one writes has to be where it is.
            yield State(name=slot.name, weight=self._bytes(slot), uses=uses, together=slot.mutated)

    def _sums_of(self, slot: Slot) -> int:
        trained = slot.name in self._optimizer or slot.mutated
        missing = self._bytes(slot) if trained and self._accumulates else 0
        return self._sums.get(slot.name, missing)

    def _bytes(self, slot: Slot) -> int:
        value = torch.empty(slot.shape, dtype=slot.dtype, device="meta")
        return bytes_of(value, self._widest)
