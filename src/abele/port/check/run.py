"""Runs an original and its port side by side, and compares them step by step."""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from abele.errors import CheckError
from abele.port.check import pairing, verdict
from abele.port.check.comparison import Comparison, Difference, StepPair
from abele.port.check.instances import compared, free_port, of_poprun, of_torchrun
from abele.port.check.messages import Messages
from abele.port.check.process import Script

Progress = Callable[[int], None]


def check(
    original: Path,
    port: Path,
    steps: int = 20,
    arguments: Sequence[str] = (),
    *,
    port_arguments: Sequence[str] | None = None,
    seed: int = 0,
    timeout_s: float = 600.0,
    progress: Progress = lambda step: None,
    python: str = sys.executable,
    back: bool = False,
    instances: int = 1,
) -> Comparison:
    """Run an original and its port, and say where they first differ.

    Both run on the host, the port on the target ``reference``, whose bits are those of plain
    PyTorch. Data loaders load in their process, without workers. What the scripts print is not
    shown; files that they write are written. The port starts when the original is at its first
    step, so that what one of them downloads is there for the other.

    Args:
        original: a script of plain PyTorch.
        port: the same through a front-end.
        steps: how many updates are compared; both scripts are stopped then.
        arguments: of both scripts.
        port_arguments: of the port, where it has others, such as another compute mode.
        seed: of Python's, numpy's and torch's random numbers; seeds in the scripts win.
        timeout_s: how long all may take, in seconds.
        progress: called with each step that was compared.
        python: the command that runs Python.
        back: whether the port is the one in plain PyTorch, and the original is not.
        instances: how many of them run, as poprun starts them, each beside a process of the port,
            as torchrun starts it; only where ``back`` is.

    Raises:
        CheckError: there is no such script, one of them fails, makes no training step, or does not
            come to its next step in time.
    """
    _require(original, port, steps, instances, back=back)
    deadline = time.monotonic() + timeout_s

    ports = free_port(), free_port()

    def started(path: Path, index: int, *, is_port: bool) -> Messages:
        of = of_poprun if is_port else of_torchrun
        of_script = port_arguments if is_port and port_arguments is not None else arguments
        script = Script(
            path, of_script, port=is_port, steps=steps, seed=seed, deadline=deadline, python=python,
            name="port" if is_port != back else "original",
            variables=of(index, instances, ports[is_port]) if instances > 1 else None,
        )  # fmt: skip
        return Messages(stack.enter_context(closing(script)))

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="abele-check-")))
        plain, wrapped = (port, original) if back else (original, port)
        first = [started(plain, index, is_port=False) for index in range(instances)]
        for each in first:
            _require_training(each)
        second = [started(wrapped, index, is_port=True) for index in range(instances)]
        for each in second:
            _require_training(each)
        pairs: list[Callable[[], Comparison]] = []
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            (folder / str(index)).mkdir()
            pair = _Check(one, other, folder / str(index))
            shown = progress if index == 0 else _unseen
            pairs.append(functools.partial(pair.run, steps, shown))
        result = pairs[0]() if instances == 1 else compared(pairs, stack.close)
        return result.turned() if back else result


def _unseen(step: int) -> None:
    """Nothing is shown of a step."""
    del step


def _require(original: Path, port: Path, steps: int, instances: int, *, back: bool) -> None:
    for name, path in (("original", original), ("port", port)):
        if not path.is_file():
            raise CheckError(f"There is no file {str(path)!r}. Name a Python program as {name}.")
    if instances > 1 and not back:
        raise CheckError(
            f"{instances} instances are compared with processes of a port in plain PyTorch, and "
            "this port is none. Ask for one."
        )
    if steps < 1:
        raise CheckError(f"{steps} steps leave nothing to compare. Ask for 1 or more.")


def _require_training(messages: Messages) -> None:
    if not messages.reach(0):
        what = "run a training model" if messages.script.wrapped else "call backward"
        raise CheckError(
            f"The {messages.script.name} {str(messages.script.path)!r} ended and did not {what}, "
            "so there is nothing to compare. Give it the arguments with which it trains, behind --."
        )


class _Check:
    """Two scripts that run."""

    def __init__(self, original: Messages, port: Messages, folder: Path):
        self._original, self._port, self._folder = original, port, folder
        self._differing: dict[int, tuple[str, ...]] = {}
        self._far: dict[str, float] = {}
        self._compared: set[str] = set()

    def run(self, steps: int, progress: Progress) -> Comparison:
        both = self._original, self._port
        last = 0
        for step in range(steps + 1):
            # Both, not the first alone: the other one may have ended too.
            there = [messages.reach(step) for messages in both]
            if not all(there):
                break
            self._compare(step)
            last = step
            progress(step)
        for messages in both:
            messages.finish(last)
        pairs = tuple(self._pair(step) for step in range(1, last + 1))
        return Comparison(
            steps=pairs,
            difference=self._first_difference(pairs, last, steps),
            compared=len(self._compared),
            notes=self._notes(pairs),
        )

    # -- one step ----------------------------------------------------------------------------

    def _compare(self, step: int) -> None:
        here, there = self._original.digests[step], self._port.digests[step]
        names = self._names()
        self._compared |= here.keys() & names.keys()
        self._differing[step] = tuple(
            name
            for name, digest in here.items()
            if name in names and there.get(names[name], digest) != digest
        )
        if self._differing[step] and not self._far:
            self._measure(self._differing[step])
            return
        self._original.go_on()
        self._port.go_on()

    def _names(self) -> dict[str, str]:
        original, port = self._original, self._port
        digests = original.digests[0], port.digests[0]
        return pairing.pairs(original.tensors, port.tensors, digests)

    def _measure(self, differing: Sequence[str]) -> None:
        """Look how far tensors are apart, the first time that some are."""
        names, values = self._names(), list[dict[str, torch.Tensor]]()
        for messages in (self._original, self._port):
            path = self._folder / messages.script.name
            messages.save(str(path))
            values.append(torch.load(path, weights_only=True))
        for name in differing:
            self._far[name] = _distance(values[0][name], values[1][names[name]])

    def _pair(self, step: int) -> StepPair:
        mine, other = self._original.updates[step], self._port.updates[step]
        digests = {each["digest"] for each in other.inputs}
        known = bool(mine.inputs) and other.alone and len(mine.losses) == 1
        return StepPair(
            step=step,
            original=mine.losses,
            port=other.losses,
            same_batch=all(each["digest"] in digests for each in mine.inputs) if known else None,
            differing=self._differing[step],
            lines=(mine.line, other.line),
        )

    def _first_difference(
        self, pairs: Sequence[StepPair], last: int, steps: int
    ) -> Difference | None:
        ends = verdict.Ends(
            steps=last,
            original=self._original.ended and last < steps,
            port=self._port.ended and last < steps,
        )
        tensors = self._original.tensors
        return verdict.first_difference(self._differing[0], pairs, tensors, self._far, ends)

    def _notes(self, pairs: Sequence[StepPair]) -> tuple[str, ...]:
        notes = [*self._original.notes]
        notes += [note for note in self._port.notes if note not in notes]
        names: Any = self._names()
        alone = [name for name in self._original.tensors if name not in names]
        if alone:
            notes.append(f"only in the original, not compared: {', '.join(alone)}")
        alone = [name for name in self._port.tensors if name not in names.values()]
        if alone:
            notes.append(f"only in the port, not compared: {', '.join(alone)}")
        quiet = sum(pair.same_loss is None for pair in pairs)
        if quiet:
            notes.append(f"the loss of {quiet} of {len(pairs)} steps was not returned by the port")
        return tuple(notes)


def _distance(mine: torch.Tensor, other: torch.Tensor) -> float:
    """Norm of the difference relative to the first tensor's norm."""
    one: Any = mine.double().flatten()
    two: Any = other.double().flatten()
    far, norm = (two - one).norm().item(), one.norm().item()
    return far / norm if norm else far
