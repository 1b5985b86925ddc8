"""Run an original script and its port, and compare their training updates and tensors."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from abele.errors import CheckError
from abele.port.check.comparison import (
    OTHER_BUFFER,
    OTHER_ROUNDING,
    OTHER_START,
    OTHER_UPDATE,
    Comparison,
    Difference,
    StepPair,
    meaning_of_loss,
)
from abele.port.check.process import Recorded, Run, Update, recorded
from abele.port.check.watch import LEFT_OUT

CANNOT = 2
#: A relative difference of a tensor that may come from rounding alone.
_SMALL = 1e-6
Facts = Mapping[str, Mapping[str, Any]]


def check(
    original: Path,
    port: Path,
    steps: int = 20,
    arguments: Sequence[str] = (),
    *,
    seed: int = 0,
    timeout_s: float = 600.0,
    progress: Callable[[int], None] = lambda updates: None,
    python: str = sys.executable,
    back: bool = False,
) -> Comparison:
    """Run an original script and its port, and report the first divergence.

    Both run on the host, the port on the target ``reference``, which computes the bits of plain
    PyTorch. Data loaders run without workers. Output of the scripts is not shown; their files are
    written. The plain script runs first, so that the other script finds its downloads. If a tensor
    differs, both run again up to that step, to measure the difference.

    Args:
        original: a script of plain PyTorch.
        port: the ported script.
        steps: number of updates that are compared, of all models together; both scripts end then.
        arguments: command-line arguments of both scripts.
        seed: seed of Python's, numpy's and torch's random numbers; seeds in the scripts win.
        timeout_s: limit of the whole comparison, in seconds.
        progress: called with the total number of updates of both scripts.
        python: the command that runs Python.
        back: the port is the one in plain PyTorch, and the original is not.

    Raises:
        CheckError: a script does not exist, fails, makes no training step, or exceeds the time.
    """
    for name, path in (("original", original), ("port", port)):
        if not path.is_file():
            raise CheckError(f"There is no file {str(path)!r}. Name a Python program as {name}.")
    if steps < 1:
        raise CheckError(f"{steps} steps leave nothing to compare. Ask for 1 or more.")
    common: dict[str, Any] = {"arguments": arguments, "steps": steps, "seed": seed}
    common |= {"deadline": time.monotonic() + timeout_s, "python": python}
    mine, other = (("port", port), ("original", original))[:: 1 if back else -1]
    plain = Run(name=mine[0], script=mine[1], watcher="original", **common)
    wrapped = Run(name=other[0], script=other[1], watcher="port", **common)
    first = _trained(plain, "update by an optimizer of torch", progress)
    made = len(first.updates)
    second = _trained(wrapped, "call of a training model", lambda count: progress(made + count))
    pairing = Pairing(first, second, steps)
    difference, notes = pairing.difference(), pairing.notes()
    if difference is not None:
        difference = _measured(difference, pairing, plain, wrapped)
        notes += [f"poptorch warned: {each}" for each in second.warned]
    return Comparison(
        steps=pairing.steps,
        difference=difference,
        compared=pairing.compared(),
        notes=tuple(notes),
        back=back,
    )


def _trained(run: Run, what: str, progress: Callable[[int], None]) -> Recorded:
    """Run a script and return its record; raise CheckError without any training update."""
    result = recorded(run, progress)
    if not result.updates:
        raise CheckError(
            f"The {run.subject} ended and made no {what}, so there is nothing to compare. Give it "
            "the arguments with which it trains, behind --."
        )
    return result


def _measured(first: Difference, pairing: Pairing, plain: Run, wrapped: Run) -> Difference:
    """Return a difference with the norm of the tensors' difference; runs both scripts again."""
    if first.step == 0 or first.kind not in ("parameter", "buffer"):
        return first
    pair = pairing.steps[first.step - 1]
    names = first.name, pairing.tensors(pair.original, pair.port)[first.name]
    values: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="abele-check-") as folder:
        for run, name in zip((plain, wrapped), names, strict=True):
            path = Path(folder, run.name)
            try:
                recorded(dataclasses.replace(run, steps=first.step, save=str(path)))
                values.append(torch.load(path, weights_only=True)[name].double().flatten())
            except (CheckError, FileNotFoundError):
                return first  # in time, or a second time, it does not get there
    one, two = values
    far, norm = (two - one).norm().item(), one.norm().item()
    far = far / norm if norm else far
    rounded = far < _SMALL and first.meaning == OTHER_UPDATE
    meaning = OTHER_ROUNDING if rounded else first.meaning
    return dataclasses.replace(first, far=far, meaning=meaning)


def checked(original: Path, port: Path, steps: int, arguments: Sequence[str], **more: Any) -> int:
    """Compare a port with its original script, print the result, and return the exit status.

    Args:
        original: a script of plain PyTorch.
        port: the ported script.
        steps: number of updates.
        arguments: command-line arguments of both scripts.
        more: keyword arguments of ``check``.

    Returns:
        0 if the scripts are equal, 1 if they differ, 2 if they cannot be compared.
    """
    with tqdm(total=2 * steps, desc="steps of both", disable=None, leave=False) as bar:

        def move(updates: int) -> None:
            bar.update(updates - bar.n)

        try:
            comparison = check(original, port, steps, arguments, progress=move, **more)
        except CheckError as error:
            bar.close()
            print(f"abele port: {error}", file=sys.stderr)
            return CANNOT
    print(comparison)
    return comparison.status


# -- pairs of updates ------------------------------------------------------------------------------


class Pairing:
    """The training updates of an original script and its port, paired in order.

    Args:
        original: record of the original, whose names are used.
        port: record of the port.
        steps: number of updates that are compared, of all models together.

    Attributes:
        steps: the pairs of updates.
    """

    def __init__(self, original: Recorded, port: Recorded, steps: int):
        self._original, self._port = original, port
        self._made = min(steps, len(original.updates)), min(steps, len(port.updates))
        self._tensors: dict[tuple[int, int], dict[str, str]] = {}
        names = _numbered([each.name for each in original.models])
        self._names = names if len(names) > 1 else [""]
        updates = list(zip(original.updates[:steps], port.updates[:steps], strict=False))
        self.steps = tuple(self._step(step, *both) for step, both in enumerate(updates, 1))

    def tensors(self, mine: Update, other: Update) -> dict[str, str]:
        """Return the port's name of each tensor of the original, for a pair of updates."""
        models = mine.model, other.model
        if models not in self._tensors:
            facts = self._original.models[mine.model], self._port.models[other.model]
            self._tensors[models] = pairs(facts[0].tensors, facts[1].tensors)
        return self._tensors[models]

    def _step(self, step: int, mine: Update, other: Update) -> StepPair:
        differing = (
            name
            for name, theirs in self.tensors(mine, other).items()
            if len({mine.digests.get(name), other.digests.get(theirs)} - {None}) == 2
        )
        return StepPair(
            step=step,
            original=mine,
            port=other,
            differing=tuple(sorted(differing, key=[*mine.digests].index)),
            model=self._names[mine.model],
        )

    # -- the first difference ----------------------------------------------------------------------

    def difference(self) -> Difference | None:
        """Return the first divergence of port and original; None if the runs are equal."""
        begun: set[tuple[str, int]] = set()
        for pair in self.steps:
            models = {("original", pair.original.model), ("port", pair.port.model)}
            first = self._in_step(pair) if models & begun else self._in_first_step(pair)
            if first is not None:
                return first
            begun |= models
        return self._end()

    def _in_first_step(self, pair: StepPair) -> Difference | None:
        """Return the first initial parameter that differs, or a difference in step 1."""
        here = self._original.models[pair.original.model].tensors
        there = self._port.models[pair.port.model].tensors
        for name, theirs in self.tensors(pair.original, pair.port).items():
            if len({here[name]["digest"], there[theirs]["digest"]} - {""}) == 2:
                return self._of_tensor(pair, 0, name, OTHER_START)
        return self._in_step(pair)

    def _in_step(self, pair: StepPair) -> Difference | None:
        """Return the loss or the first tensor that differs after a training step, or None."""
        if pair.same_loss is False:
            mine, other = pair.original.losses[-1], pair.port.losses[-1]
            return Difference(
                step=pair.step, kind="loss", name="", far=abs(other - mine) / (abs(mine) or 1.0),
                lines=(pair.original.line, pair.port.line), meaning=meaning_of_loss(pair),
                model=pair.model,
            )  # fmt: skip
        if not pair.differing:
            return None
        return self._of_tensor(pair, pair.step, pair.differing[0], OTHER_UPDATE)

    def _of_tensor(self, pair: StepPair, step: int, name: str, meaning: str) -> Difference:
        facts = self._original.models[pair.original.model].tensors[name]
        kind = facts["kind"]
        lines = (pair.original.line, pair.port.line) if step else ("", "")
        return Difference(
            step=step, kind=kind, name=name, far=None, lines=lines,
            meaning=OTHER_BUFFER if kind == "buffer" else meaning, model=pair.model,
        )  # fmt: skip

    def _end(self) -> Difference | None:
        """Return a difference if one script made more updates than the other, or None."""
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
        """Return the number of distinct tensors that were compared in both scripts."""
        return len(
            {
                (pair.original.model, name)
                for pair in self.steps
                for name in self.tensors(pair.original, pair.port).keys() & pair.original.digests
            }
        )

    def notes(self) -> list[str]:
        """Return sentences about changes and omissions in the comparison of two scripts."""
        of_both = [each for each in self._original.notes if not each.endswith(LEFT_OUT)]
        of_port = [each for each in self._port.notes if each not in self._original.notes]
        notes = [*of_both, *of_port]
        alone: dict[str, dict[str, None]] = {"original": {}, "port": {}}
        for pair in self.steps:
            names = self.tensors(pair.original, pair.port)
            for script, digests, known in (
                ("original", pair.original.digests, names.keys()),
                ("port", pair.port.digests, names.values()),
            ):
                alone[script] |= dict.fromkeys(each for each in digests if each not in known)
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
    """Return model names, with numbers appended to duplicates."""
    counts = Counter(names)
    return [
        f"{name} {names[: place + 1].count(name)}" if counts[name] > 1 else name
        for place, name in enumerate(names)
    ]


# -- pairs of tensors ------------------------------------------------------------------------------


def pairs(original: Facts, port: Facts) -> dict[str, str]:
    """Map tensor names of an original model to those of its port, for tensors in both.

    Tensors of equal shape and kind are paired by initial values that are unique, then by the same
    prefixes as those; else by name, apart from a prefix; else by initial values; else in order.
    """
    paired: dict[str, str] = {}

    def take(alike: Callable[[str, str], bool], *, only: bool) -> None:
        """Pair unpaired tensors that match a condition; with ``only``, if the match is unique."""
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
    take(lambda one, other: one.endswith(f".{other}") or other.endswith(f".{one}"), only=True)
    take(same_values, only=True)
    take(lambda name, other: True, only=False)
    return paired


def _prefixes(name: str, other: str) -> tuple[str, str] | None:
    """Return the parts of two dotted names before their common suffix; None without a suffix."""
    mine, theirs = name.split("."), other.split(".")
    while mine and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
    before = ".".join(mine), ".".join(theirs)
    return None if before == (name, other) else before
