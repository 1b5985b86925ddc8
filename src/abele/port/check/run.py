"""Run an original and its port, compare their records, and print the answer."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from abele.errors import CheckError
from abele.port.check.comparison import OTHER_ROUNDING, OTHER_UPDATE, Comparison, Difference
from abele.port.check.pairing import Pairing
from abele.port.check.process import Recorded, Run, recorded

CANNOT = 2
#: A relative difference of a tensor that may come from rounding alone.
_SMALL = 1e-6


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
    """Run an original and its port, and say where they first differ.

    Both run on the host, the port on the target ``reference``, whose bits are those of plain
    PyTorch. Data loaders load in their process, without workers. What the scripts print is not
    shown; files that they write are written. The plain script runs first, so that what it downloads
    is there for the other. If a tensor differs, both run again up to that step, to measure how far.

    Args:
        original: a script of plain PyTorch.
        port: the same through a front-end.
        steps: how many updates are compared, of all models together; both scripts end then.
        arguments: of both scripts.
        seed: of Python's, numpy's and torch's random numbers; seeds in the scripts win.
        timeout_s: limit of the whole comparison, in seconds.
        progress: called with the number of updates that both scripts together have made.
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
    """Run a script that has to train.

    Raises:
        CheckError: it made no update.
    """
    result = recorded(run, progress)
    if not result.updates:
        raise CheckError(
            f"The {run.subject} ended and made no {what}, so there is nothing to compare. Give it "
            "the arguments with which it trains, behind --."
        )
    return result


def _measured(first: Difference, pairing: Pairing, plain: Run, wrapped: Run) -> Difference:
    """Return a difference with the distance of its tensors, for which both scripts run again."""
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
    """Compare a port with its original, print the answer, and return the exit status.

    Args:
        original: a script of plain PyTorch.
        port: the same through a front-end.
        steps: number of updates.
        arguments: of both scripts.
        more: keyword arguments of ``check``.

    Returns:
        0 if they are equal, 1 if they differ, 2 if they cannot be compared.
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
