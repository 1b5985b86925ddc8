"""Runs a port in a process of its own, and shows its models when they are captured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from abele.capture import Call, core
from abele.errors import CheckError
from abele.fit.command import running
from abele.step.config import StepConfig

#: Called with what is captured: how forward is called, its module, a micro-batch, and the step.
Look = Callable[[Call, torch.nn.Module, Sequence[torch.Tensor], StepConfig], None]
_MARK = "abele-ladder: "
_LAST_LINES = 15


@contextlib.contextmanager
def looking(look: Look) -> Generator[None]:
    """While open, somebody is shown each model before it is captured."""
    plain: Any = core.recipe_of

    def shown(call: Call, module: Any, inputs: Any, config: StepConfig, *args: Any, **more: Any):
        look(call, module, inputs, config)
        return plain(call, module, inputs, config, *args, **more)

    setattr(core, "recipe_of", shown)  # noqa: B010 - for all captures of the process
    try:
        yield
    finally:
        setattr(core, "recipe_of", plain)  # noqa: B010


class Seen(BaseException):
    """Ends a script when all was seen; no ``except Exception`` of the script catches it."""


def runs_to_its_end(
    script: str,
    arguments: Sequence[str],
    look: Look,
    observing: contextlib.AbstractContextManager[object],
) -> bool:
    """Run a port, and show its models; False if ``Seen`` ends it.

    Args:
        script: the port.
        arguments: of the script.
        look: is shown each model before it is captured.
        observing: is open meanwhile.
    """
    try:
        with observing, looking(look):
            running(Path(script), list(arguments), quiet=True)
    except Seen:
        return False
    return True


def tell(**facts: Any) -> None:
    """Tell who has started this process what was seen."""
    # Not with what the script prints: that may go anywhere.
    os.write(2, f"\n{_MARK}{json.dumps(facts)}\n".encode())


def answer_of(
    module: str, script: Path, arguments: Sequence[str], python: str, timeout_s: float
) -> dict[str, Any]:
    """Run a module of this folder with a script, and return what it tells.

    Args:
        module: its name.
        script: the port.
        arguments: of the script.
        python: the command that runs Python.
        timeout_s: how long it may take, in seconds.

    Raises:
        CheckError: the script fails before anything is seen, or takes too long.
    """
    command = [python, "-m", f"abele.port.rungs.{module}", str(script), *arguments]
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "ABELE_TARGET": "reference"}
    path = os.pathsep.join(os.path.abspath(each) for each in sys.path)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=timeout_s,
            env=variables | {"PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise CheckError(
            f"{script} has not called its models within {timeout_s:g} s. Give it arguments with "
            "which it has less to do."
        ) from None
    for line in done.stderr.splitlines():
        if line.startswith(_MARK):
            facts: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return facts
    last = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
    raise CheckError(f"{script} ended with status {done.returncode}. It printed last:\n{last}")
