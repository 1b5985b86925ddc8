"""Compares what two scripts report, while both wait after each update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from abele.port.check import pairing, verdict
from abele.port.check.comparison import Comparison, StepPair
from abele.port.check.messages import Messages, State


class SideBySide:
    """Two scripts that run.

    Both go on together. Where one makes several updates of a model in one call, and another model
    is trained in turn, the one that has not yet come to a state of the other goes on alone.

    Args:
        original: plain PyTorch, whose names are used.
        port: the other one.
        folder: for tensors that differ.
        steps: how many updates of each are compared, of all models together.
    """

    def __init__(self, original: Messages, port: Messages, folder: Path, steps: int):
        self._original, self._port, self._folder = original, port, folder
        self._steps = steps
        self._far: dict[tuple[int, str], float] = {}
        self._paired: dict[tuple[int, ...], dict[str, str]] = {}

    def run(self, progress: Callable[[int], None]) -> Comparison:
        """Run both to their ends, or until all steps were made, and compare them."""
        while self._read():
            self._go_on()
            progress(min(self._made(self._original), self._made(self._port)))
        for messages in (self._original, self._port):
            messages.finish()
        return self._result()

    # -- while they run ------------------------------------------------------------------------

    def _made(self, messages: Messages) -> int:
        return min(self._steps, len(messages.order))

    def _read(self) -> bool:
        """Read on until each waits or has no more to report; whether there is one that waits."""
        waiting = False
        both = (self._original, self._port), (self._port, self._original)
        for messages, other in both:
            made = self._made(messages)
            done = messages.waiting is None and made == self._steps
            if not done and not (other.ended and made > self._made(other)):
                waiting |= messages.reach_state() is not None
        return waiting

    def _go_on(self) -> None:
        first, second = self._original, self._port
        mine, other = first.waiting, second.waiting
        if mine is not None and mine == other:
            self._look_at(mine)
            return
        behind = [
            messages
            for messages, there in ((first, second), (second, first))
            if messages.waiting in there.digests
        ]
        for messages in behind or (first, second):
            if messages.waiting is not None:
                messages.go_on()

    def _look_at(self, state: State) -> None:
        """Measure how far tensors are apart, the first time that some are."""
        differing = self._differing(state, state)
        if not differing or self._far:
            self._original.go_on()
            self._port.go_on()
            return
        values: list[dict[str, torch.Tensor]] = []
        for messages in (self._original, self._port):
            path = self._folder / messages.script.name
            messages.save(str(path))
            values.append(torch.load(path, weights_only=True))
        names = self._names(state[0], state[0])
        for name in differing:
            self._far[state[0], name] = _distance(values[0][name], values[1][names[name]])

    # -- tensors -------------------------------------------------------------------------------

    def _names(self, mine: int, other: int) -> dict[str, str]:
        """Tensors of a model of the port by those of one of the original."""
        facts = self._original.models[mine].tensors, self._port.models[other].tensors
        known = mine, other, *map(len, facts)
        if known not in self._paired:
            starts = self._original.digests.get((mine, 0)), self._port.digests.get((other, 0))
            self._paired[known] = pairing.pairs(*facts, (starts[0] or {}, starts[1] or {}))
        return self._paired[known]

    def _differing(self, mine: State, other: State) -> tuple[str, ...]:
        names = self._names(mine[0], other[0])
        here, there = self._original.digests[mine], self._port.digests[other]
        return tuple(
            name
            for name, digest in here.items()
            if name in names and there.get(names[name], digest) != digest
        )

    # -- when both have ended ------------------------------------------------------------------

    def _result(self) -> Comparison:
        order = self._original.order[: self._steps], self._port.order[: self._steps]
        models = self._models(*order)
        updates = _updates(*order, models)
        pairs = tuple(self._pair(number, mine, other) for number, mine, other in updates)
        names = self._names_of_models()
        compared = {
            (mine[0], name)
            for _, mine, other in updates
            for name in self._original.digests[mine].keys() & self._names(mine[0], other[0]).keys()
        }
        return Comparison(
            steps=pairs,
            difference=verdict.first_difference(
                self._model_pairs(names, updates), pairs, self._ends(order, models, names)
            ),
            compared=len(compared),
            notes=self._notes(pairs, updates),
            models=tuple(names),
        )

    def _models(self, original: Sequence[State], port: Sequence[State]) -> list[int] | None:
        """The model of the port by that of the original; None if one of them has more."""
        counts = len({each for each, _ in original}), len({each for each, _ in port})
        if counts[0] != counts[1]:
            return None
        mine, other = self._original.models[: counts[0]], self._port.models[: counts[1]]
        return pairing.models([each.tensors for each in mine], [each.tensors for each in other])

    def _names_of_models(self) -> list[str]:
        """Their names in the original; those that several have get a number."""
        names = [each.name for each in self._original.models]
        several = {name for name, count in Counter(names).items() if count > 1}
        return [
            f"{name} {names[: place + 1].count(name)}" if name in several else name
            for place, name in enumerate(names)
        ]

    def _model_pairs(
        self, names: Sequence[str], updates: Sequence[tuple[int, State, State]]
    ) -> list[verdict.ModelPair]:
        starts = {mine[0]: other[0] for _, mine, other in updates if mine[1] == other[1] == 1}
        if not updates:
            starts = {0: 0}
        return [
            verdict.ModelPair(
                name=name if len(names) > 1 else "",
                tensors=self._original.models[model].tensors,
                at_start=self._differing((model, 0), (starts[model], 0)) if model in starts else (),
                far={each: far for (owner, each), far in self._far.items() if owner == model},
            )
            for model, name in enumerate(names)
        ]

    def _pair(self, number: int, mine: State, other: State) -> StepPair:
        one, two = self._original.updates[mine], self._port.updates[other]
        digests = {each["digest"] for each in two.inputs}
        known = bool(one.inputs) and two.alone and len(one.losses) == 1
        return StepPair(
            step=number,
            original=one.losses,
            port=two.losses,
            same_batch=all(each["digest"] in digests for each in one.inputs) if known else None,
            differing=self._differing(mine, other),
            lines=(one.line, two.line),
            model=mine[0],
        )

    def _ends(
        self,
        order: tuple[Sequence[State], Sequence[State]],
        models: Sequence[int] | None,
        names: Sequence[str],
    ) -> verdict.Ends:
        last = min(map(len, order))
        turn = None
        for number, (mine, other) in enumerate(zip(*order, strict=False), 1):
            alone = self._port.updates[other].alone and self._original.updates[mine].alone
            if models is not None and alone and models[mine[0]] != other[0]:
                turn = number, names[mine[0]], names[models.index(other[0])]
                break
        return verdict.Ends(
            steps=last,
            original=self._original.ended and len(order[0]) == last < self._steps,
            port=self._port.ended and len(order[1]) == last < self._steps,
            turn=turn,
        )

    def _notes(
        self, pairs: Sequence[StepPair], updates: Sequence[tuple[int, State, State]]
    ) -> tuple[str, ...]:
        notes = list(dict.fromkeys([*self._original.notes, *self._port.notes]))
        both = dict.fromkeys((mine[0], other[0]) for _, mine, other in updates)
        mine: dict[str, Any] = {}
        other: dict[str, Any] = {}
        for one, two in both:
            names = self._names(one, two)
            tensors = self._original.models[one].tensors, self._port.models[two].tensors
            mine |= dict.fromkeys(name for name in tensors[0] if name not in names)
            other |= dict.fromkeys(name for name in tensors[1] if name not in names.values())
        for script, alone in (("original", mine), ("port", other)):
            if alone:
                notes.append(f"only in the {script}, not compared: {', '.join(alone)}")
        quiet = sum(pair.same_loss is None for pair in pairs)
        if quiet:
            notes.append(f"the loss of {quiet} of {len(pairs)} steps was not returned by the port")
        return tuple(notes)


def _updates(
    original: Sequence[State], port: Sequence[State], models: Sequence[int] | None
) -> list[tuple[int, State, State]]:
    """Which update of the port each of the original is, with its number.

    They are paired by model, if both train as many models. If not, what one of them trains as two
    is one for the other, such as a network that gets another optimizer, and order says which.
    """
    if models is None:
        return [(number, *both) for number, both in enumerate(zip(original, port, strict=False), 1)]
    made = set(port)
    return [
        (number, mine, (models[mine[0]], mine[1]))
        for number, mine in enumerate(original, 1)
        if (models[mine[0]], mine[1]) in made
    ]


def _distance(mine: torch.Tensor, other: torch.Tensor) -> float:
    """Norm of the difference relative to the first tensor's norm."""
    one: Any = mine.double().flatten()
    two: Any = other.double().flatten()
    far, norm = (two - one).norm().item(), one.norm().item()
    return far / norm if norm else far
