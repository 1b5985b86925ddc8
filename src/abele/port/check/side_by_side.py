"""Run an original and its port side by side, and compare them while both wait after each update."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from abele.errors import CheckError
from abele.port.check.comparison import Comparison, Ends, ModelPair, StepPair, first_difference
from abele.port.check.process import Messages, Script, State

Progress = Callable[[int], None]
CANNOT = 2


def check(
    original: Path,
    port: Path,
    steps: int = 20,
    arguments: Sequence[str] = (),
    *,
    seed: int = 0,
    timeout_s: float = 600.0,
    progress: Progress = lambda step: None,
    python: str = sys.executable,
    back: bool = False,
) -> Comparison:
    """Run an original and its port, and say where they first differ.

    Both run on the host, the port on the target ``reference``, whose bits are those of plain
    PyTorch. Data loaders load in their process, without workers. What the scripts print is not
    shown; files that they write are written. The wrapped script starts when the plain one is at its
    first step, so that what one of them downloads is there for the other.

    Args:
        original: a script of plain PyTorch.
        port: the same through a front-end.
        steps: how many updates are compared, of all models together; both scripts end then.
        arguments: of both scripts.
        seed: of Python's, numpy's and torch's random numbers; seeds in the scripts win.
        timeout_s: limit of the whole comparison, in seconds.
        progress: called with each step that was compared.
        python: the command that runs Python.
        back: the port is the one in plain PyTorch, and the original is not.

    Raises:
        CheckError: there is no such script, one of them fails, makes no training step, or does not
            come to its next step in time.
    """
    for name, path in (("original", original), ("port", port)):
        if not path.is_file():
            raise CheckError(f"There is no file {str(path)!r}. Name a Python program as {name}.")
    if steps < 1:
        raise CheckError(f"{steps} steps leave nothing to compare. Ask for 1 or more.")
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="abele-check-")))

        def started(*, is_port: bool) -> Messages:
            """Start one of both, and wait for its first step."""
            script = Script(
                port if is_port != back else original, arguments, port=is_port, steps=steps,
                seed=seed, deadline=deadline, python=python,
                name="port" if is_port != back else "original",
            )  # fmt: skip
            messages = Messages(stack.enter_context(closing(script)))
            if messages.reach_state() is None:
                what = "run a training model" if is_port else "call backward"
                raise CheckError(
                    f"The {script.name} {str(script.path)!r} ended and did not {what}, so there is "
                    "nothing to compare. Give it the arguments with which it trains, behind --."
                )
            return messages

        plain = started(is_port=False)
        wrapped = started(is_port=True)
        result = SideBySide(plain, wrapped, folder, steps).run(progress)
        warned = () if result.equal else dict.fromkeys(wrapped.script.warned())
        notes = (*result.notes, *(f"poptorch warned: {each}" for each in warned))
        return dataclasses.replace(result, notes=notes, back=back)


def checked(original: Path, port: Path, steps: int, arguments: Sequence[str], **more: Any) -> int:
    """Compare a port with its original, print the answer, and return the exit status.

    Args:
        original: as for ``check``, like all arguments.
        port: a script.
        steps: number of updates.
        arguments: of both scripts.
        more: keyword arguments of ``check``.

    Returns:
        0 if they are equal, 1 if they differ, 2 if they cannot be compared.
    """
    with tqdm(total=steps, desc="steps compared", disable=None, leave=False) as bar:

        def move(step: int) -> None:
            bar.update(step - bar.n)

        try:
            comparison = check(original, port, steps, arguments, progress=move, **more)
        except CheckError as error:
            bar.close()
            print(f"abele port: {error}", file=sys.stderr)
            return CANNOT
    print(comparison)
    return comparison.status


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
            self._paired[known] = pairs(*facts, (starts[0] or {}, starts[1] or {}))
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
            difference=first_difference(
                self._model_pairs(names, updates), pairs, self._ends(order, models, names)
            ),
            compared=len(compared),
            notes=self._notes(pairs, updates),
            models=tuple(names),
        )

    def _models(self, original: Sequence[State], port: Sequence[State]) -> list[int] | None:
        """Return the port's model by that of the original; None if one of them has more."""
        counts = len({each for each, _ in original}), len({each for each, _ in port})
        if counts[0] != counts[1]:
            return None
        mine, other = self._original.models[: counts[0]], self._port.models[: counts[1]]
        return models_of([each.tensors for each in mine], [each.tensors for each in other])

    def _names_of_models(self) -> list[str]:
        """Return the models' names in the original; equal names get numbers."""
        names = [each.name for each in self._original.models]
        several = {name for name, count in Counter(names).items() if count > 1}
        return [
            f"{name} {names[: place + 1].count(name)}" if name in several else name
            for place, name in enumerate(names)
        ]

    def _model_pairs(
        self, names: Sequence[str], updates: Sequence[tuple[int, State, State]]
    ) -> list[ModelPair]:
        starts = {mine[0]: other[0] for _, mine, other in updates if mine[1] == other[1] == 1}
        if not updates:
            starts = {0: 0}
        return [
            ModelPair(
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
    ) -> Ends:
        last = min(map(len, order))
        turn = None
        for number, (mine, other) in enumerate(zip(*order, strict=False), 1):
            alone = self._port.updates[other].alone and self._original.updates[mine].alone
            if models is not None and alone and models[mine[0]] != other[0]:
                turn = number, names[mine[0]], names[models.index(other[0])]
                break
        return Ends(
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
    """Return pairs of an original's update and the port's, with their numbers.

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


# -- pairs of models and tensors -------------------------------------------------------------------

Facts = Mapping[str, Mapping[str, Any]]


def pairs(
    original: Facts,
    port: Facts,
    digests: tuple[Mapping[str, str], Mapping[str, str]],
) -> dict[str, str]:
    """Return the port's name of each tensor by the original's, for tensors that are in both.

    Args:
        original: shape and kind of each tensor by name.
        port: likewise.
        digests: of both at the start, as far as they are known.

    Returns:
        Tensors with values that no other one of the shape has, and those beside them; else with
        the same name, but for a prefix; else with the same values; else, among those of the same
        shape, in the same place of the order.
    """
    paired: dict[str, str] = {}
    here, there = digests

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
        return here.get(name, "") == there.get(other)

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


def models_of(original: Sequence[Facts], port: Sequence[Facts]) -> list[int]:
    """Return the index of the port's model for each model of the original; both have as many.

    Args:
        original: shape and kind of each model's tensors by name, in the order of first updates.
        port: likewise.

    Returns:
        The first one that is left of those with most of the model's tensors.
    """
    left = list(range(len(port)))
    taken: list[int] = []
    for facts in original:
        best = max(left, key=lambda number: (_alike(facts, port[number]), -number))
        left.remove(best)
        taken.append(best)
    return taken


def _alike(original: Facts, port: Facts) -> int:
    """Count tensors with a counterpart of the same shape and, but for a prefix, name."""
    return sum(
        any(
            other["shape"] == facts["shape"] and _prefixes(name, theirs) is not None
            for theirs, other in port.items()
        )
        for name, facts in original.items()
    )


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
