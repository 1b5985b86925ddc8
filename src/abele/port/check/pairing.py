"""Pair the updates and tensors of an original with those of its port, and find what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abele.port.check.comparison import (
    OTHER_BUFFER,
    OTHER_START,
    OTHER_UPDATE,
    Difference,
    StepPair,
    meaning_of_loss,
)
from abele.port.check.process import Recorded, Update

Facts = Mapping[str, Mapping[str, Any]]


class Pairing:
    """The updates of an original and its port, one by one in their order.

    Args:
        original: record of the original, whose names are used.
        port: record of the port.
        steps: number of updates that are compared, of all models together.

    Attributes:
        names: of the original's models; equal names get numbers.
        steps: the pairs of updates.
    """

    def __init__(self, original: Recorded, port: Recorded, steps: int):
        self._original, self._port = original, port
        self._made = min(steps, len(original.updates)), min(steps, len(port.updates))
        self._tensors: dict[tuple[int, int], dict[str, str]] = {}
        self.names = _numbered([each.name for each in original.models])
        updates = list(zip(original.updates[:steps], port.updates[:steps], strict=False))
        self.steps = tuple(self._step(step, *both) for step, both in enumerate(updates, 1))

    def tensors(self, mine: int, other: int) -> dict[str, str]:
        """Return the names of a port's tensors by those of a model of the original."""
        if (mine, other) not in self._tensors:
            models = self._original.models[mine], self._port.models[other]
            self._tensors[mine, other] = pairs(models[0].tensors, models[1].tensors)
        return self._tensors[mine, other]

    def _step(self, step: int, mine: Update, other: Update) -> StepPair:
        known = bool(mine.inputs) and other.alone and len(mine.losses) == 1
        names = self.tensors(mine.model, other.model)
        return StepPair(
            step=step,
            original=mine.losses,
            port=other.losses,
            same_batch={*mine.inputs} <= {*other.inputs} if known else None,
            differing=tuple(
                name
                for name, digest in mine.digests.items()
                if name in names and other.digests.get(names[name], digest) != digest
            ),
            lines=(mine.line, other.line),
            models=(mine.model, other.model),
        )

    # -- the first difference ----------------------------------------------------------------------

    def difference(self) -> Difference | None:
        """Return where both diverge first; None if they are equal."""
        begun: tuple[set[int], set[int]] = set(), set()
        for pair in self.steps:
            if not any(model in seen for model, seen in zip(pair.models, begun, strict=True)):
                name = self._at_start(*pair.models)
                if name:
                    return self._of_tensor(pair, 0, name, ("", ""), OTHER_START)
            for model, seen in zip(pair.models, begun, strict=True):
                seen.add(model)
            first = self._in_step(pair)
            if first is not None:
                return first
        return self._end()

    def _at_start(self, mine: int, other: int) -> str:
        """Return the first parameter that differs before the first update of a model, or ""."""
        here, there = self._original.models[mine].tensors, self._port.models[other].tensors
        for name, theirs in self.tensors(mine, other).items():
            digests = {here[name]["digest"], there[theirs]["digest"]}
            if len(digests) == 2 and "" not in digests:
                return name
        return ""

    def _in_step(self, pair: StepPair) -> Difference | None:
        """Return the loss or the first tensor that differs after a step."""
        if pair.same_loss is False:
            mine, other = pair.original[-1], pair.port[-1]
            return Difference(
                step=pair.step, kind="loss", name="", far=abs(other - mine) / (abs(mine) or 1.0),
                lines=pair.lines, meaning=meaning_of_loss(pair), model=self._name(pair),
            )  # fmt: skip
        if not pair.differing:
            return None
        first = pair.differing[0]
        is_buffer = self._original.models[pair.models[0]].tensors[first]["kind"] == "buffer"
        meaning = OTHER_BUFFER if is_buffer else OTHER_UPDATE
        return self._of_tensor(pair, pair.step, first, pair.lines, meaning)

    def _of_tensor(
        self, pair: StepPair, step: int, name: str, lines: tuple[str, str], meaning: str
    ) -> Difference:
        facts = self._original.models[pair.models[0]].tensors[name]
        return Difference(
            step=step, kind=facts["kind"], name=name, far=None, meaning=meaning,
            lines=(facts["line"] or lines[0], lines[1]), model=self._name(pair),
        )  # fmt: skip

    def _name(self, pair: StepPair) -> str:
        return self.names[pair.models[0]] if len(self.names) > 1 else ""

    def _end(self) -> Difference | None:
        """Return the step that only one of them makes."""
        mine, other = self._made
        if mine == other:
            return None
        (last, shorter), (_, longer) = sorted([(mine, "original"), (other, "port")])
        meaning = (
            f"The {shorter} ends after {last} steps, the {longer} goes on: compare "
            "drop_last, the batch size, and options that join batches."
        )
        return Difference(
            step=last + 1, kind="steps", name="", far=None, lines=("", ""), meaning=meaning
        )

    # -- what is compared --------------------------------------------------------------------------

    def compared(self) -> int:
        """Return the number of tensors that were compared."""
        updates = zip(self._original.updates, self.steps, strict=False)
        return len(
            {
                (mine.model, name)
                for mine, pair in updates
                for name in mine.digests.keys() & self.tensors(*pair.models).keys()
            }
        )

    def notes(self) -> list[str]:
        """Return what was changed or left out, in words."""
        notes = [*dict.fromkeys([*self._original.notes, *self._port.notes])]
        alone: dict[str, dict[str, None]] = {"original": {}, "port": {}}
        for models in dict.fromkeys(pair.models for pair in self.steps):
            names = self.tensors(*models)
            mine, other = self._original.models[models[0]], self._port.models[models[1]]
            alone["original"] |= dict.fromkeys(each for each in mine.tensors if each not in names)
            theirs = {*names.values()}
            alone["port"] |= dict.fromkeys(each for each in other.tensors if each not in theirs)
        notes += [
            f"only in the {script}, not compared: {', '.join(names)}"
            for script, names in alone.items()
            if names
        ]
        quiet = sum(pair.same_loss is None for pair in self.steps)
        if quiet:
            count = len(self.steps)
            notes.append(f"the loss of {quiet} of {count} steps was not returned by the port")
        return notes


def _numbered(names: Sequence[str]) -> list[str]:
    """Return names of which equal ones have numbers."""
    counts = Counter(names)
    return [
        f"{name} {names[: place + 1].count(name)}" if counts[name] > 1 else name
        for place, name in enumerate(names)
    ]


# -- pairs of tensors ------------------------------------------------------------------------------


def pairs(original: Facts, port: Facts) -> dict[str, str]:
    """Return the port's name of each tensor by the original's, for tensors that are in both.

    Tensors correspond that have first values which no other one of the shape has, and tensors next
    to these; else by name, apart from a prefix; else by first values; else by the order of tensors
    of the same shape.

    Args:
        original: facts of ``process.Model`` about each tensor by name.
        port: facts about the tensors of the port.
    """
    paired: dict[str, str] = {}

    def take(alike: Callable[[str, str], bool], *, only: bool) -> None:
        """Pair what is alike; where ``only``, if nothing else is."""
        free = [name for name in port if name not in paired.values()]
        for name, facts in original.items():
            if name in paired:
                continue
            places = (facts["shape"], facts["kind"])
            fits = [o for o in free if (port[o]["shape"], port[o]["kind"]) == places]
            fits = [other for other in fits if alike(name, other)]
            if fits and (len(fits) == 1 or not only):
                paired[name] = fits[0]
                free.remove(fits[0])

    def same_values(name: str, other: str) -> bool:
        return original[name]["digest"] == port[other]["digest"] != ""

    # Two networks of one program may have the same names, each after another prefix.
    take(lambda name, other: same_values(name, other) and _prefixes(name, other) is not None,
         only=True)  # fmt: skip
    known = {_prefixes(name, other) for name, other in paired.items()}
    take(lambda name, other: _prefixes(name, other) in known, only=True)
    take(lambda name, other: name == other, only=True)
    take(_is_inside, only=True)
    take(same_values, only=True)
    take(lambda name, other: True, only=False)
    return paired


def _prefixes(name: str, other: str) -> tuple[str, str] | None:
    """Return the parts of two names before their common end; None if they share none."""
    mine, theirs = name.split("."), other.split(".")
    while mine and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
    before = ".".join(mine), ".".join(theirs)
    return None if before == (name, other) else before


def _is_inside(name: str, other: str) -> bool:
    return name.endswith(f".{other}") or other.endswith(f".{name}")
