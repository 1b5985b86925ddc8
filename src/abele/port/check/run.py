"""Runs an original and its port side by side, and compares them step by step."""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from abele.errors import CheckError
from abele.port.check.comparison import Comparison
from abele.port.check.instances import compared, free_port, of_poprun, of_torchrun
from abele.port.check.messages import Messages
from abele.port.check.process import Script
from abele.port.check.side_by_side import SideBySide

Progress = Callable[[int], None]


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
        steps: how many updates are compared, of all models that they train; both scripts are
            stopped then.
        arguments: of both scripts.
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
        script = Script(
            path, arguments, port=is_port, steps=steps, seed=seed, deadline=deadline, python=python,
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
            pair = SideBySide(one, other, folder / str(index), steps)
            pairs.append(functools.partial(pair.run, progress if index == 0 else _unseen))
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
    if messages.reach_state() is None:
        what = "run a training model" if messages.script.wrapped else "call backward"
        raise CheckError(
            f"The {messages.script.name} {str(messages.script.path)!r} ended and did not {what}, "
            "so there is nothing to compare. Give it the arguments with which it trains, behind --."
        )
