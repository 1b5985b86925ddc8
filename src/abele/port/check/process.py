"""Run a script in a separate process, and read its record of training updates."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from abele.errors import CheckError

# Python's own search path is passed on: the package need not be installed.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from abele.port.check.script import main
main(sys.argv[2])
"""
_LAST_LINES = 15
_WARNING = re.compile(r"(?:\bHostChangeWarning: |\[warning\] )(.*)")
_PAUSE_S = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A request to run a script in a process that records its training updates.

    Attributes:
        arguments: command-line arguments of the script.
        watcher: name of the watcher, a key of ``script.WATCHERS``.
        name: label of the script in messages, ``original`` or ``port``.
        deadline: on the clock of ``time.monotonic``, in seconds.
        steps: number of updates after which the script is stopped.
        seed: seed of the random generators at the start of the script.
        python: the command that runs Python.
        save: file for the tensors after the last update; empty for none.
    """

    script: Path
    arguments: Sequence[str]
    watcher: str
    name: str
    deadline: float
    steps: int = 1
    seed: int = 0
    python: str = sys.executable
    save: str = ""

    @property
    def subject(self) -> str:
        """The label and path of the script, for messages."""
        return f"{self.name} {str(self.script)!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """A recorded update of a model's parameters.

    Attributes:
        model: number of the model, in the order of first updates.
        losses: losses of the update; empty if its call returns only the loss of a later update.
        inputs: digest of each input tensor of the call.
        alone: whether its call made no other update.
        line: the user's line that made the update.
        digests: digests of the model's tensors after the update, by name.
    """

    model: int
    losses: tuple[float, ...]
    inputs: tuple[str, ...]
    alone: bool
    line: str
    digests: Mapping[str, str]


@dataclasses.dataclass
class Model:
    """A model that a script trains, with the shape and kind of each tensor.

    Attributes:
        name: empty if it is not known.
        tensors: ``shape``, ``kind``, and ``digest`` before the first update of each tensor by name.
            The digest is empty where it is not known.
    """

    name: str = ""
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass
class Recorded:
    """The record of a script's run: its models, updates and notes.

    Attributes:
        models: models in the order of their first updates.
        updates: updates in execution order.
        notes: sentences, without duplicates.
        ended: whether the script ended before all requested updates were made.
        warned: warnings of poptorch, such as of values that the host has changed.
    """

    models: list[Model] = dataclasses.field(default_factory=list[Model])
    updates: list[Update] = dataclasses.field(default_factory=list[Update])
    notes: list[str] = dataclasses.field(default_factory=list[str])
    ended: bool = False
    warned: list[str] = dataclasses.field(default_factory=list[str])

    def add(self, kind: str, record: dict[str, Any]) -> None:
        """Add a JSON record that a script has written."""
        if kind == "model":
            number: int = record["model"]
            self.models += [Model()] if number == len(self.models) else []
            self.models[number].name = record["name"]
            self.models[number].tensors.update(record["tensors"])
        elif kind == "update":
            record |= {name: tuple(record[name]) for name in ("losses", "inputs")}
            self.updates.append(Update(**record))
        elif kind == "note" and record["text"] not in self.notes:
            self.notes.append(record["text"])
        elif kind == "end":
            self.ended = record["ended"]


def recorded(run: Run, progress: Callable[[int], None] = lambda updates: None) -> Recorded:
    """Run a script in a separate process and return its record of training updates.

    Args:
        run: the script and its watcher.
        progress: called with the number of updates so far.

    Raises:
        CheckError: the script failed, its process died, or it takes too long.
    """
    result = Recorded()
    end: dict[str, Any] | None = None
    with tempfile.TemporaryDirectory(prefix="abele-check-") as folder:
        output, records = Path(folder, "output"), Path(folder, "records")
        records.touch()
        process = _started(run, output, records)
        rest = ""
        try:
            with records.open(encoding="utf-8") as file:
                running = True
                while running and time.monotonic() < run.deadline:
                    time.sleep(_PAUSE_S)
                    running = process.poll() is None
                    *lines, rest = (rest + file.read()).split("\n")
                    for record in map(json.loads, lines):
                        kind: str = record.pop("kind")
                        end = record if kind == "end" else end
                        result.add(kind, record)
                    progress(len(result.updates))
        finally:
            process.kill()
            process.wait()
        printed = output.read_text("utf-8", errors="replace").splitlines()
    _require_end(run, process.returncode if not running else None, end, printed)
    warned = (found[1].rstrip(".") for each in printed if (found := _WARNING.search(each)))
    result.warned = [*dict.fromkeys(warned)]
    return result


def _started(run: Run, output: Path, records: Path) -> subprocess.Popen[bytes]:
    request = {"script": str(run.script), "arguments": [*run.arguments], "watcher": run.watcher}
    request |= {"steps": run.steps, "seed": run.seed, "save": run.save, "records": str(records)}
    path_of_python = json.dumps([os.path.abspath(each) for each in sys.path])
    # Both scripts compute on the host, where the same operators give the same bits.
    own = {"CUDA_VISIBLE_DEVICES": "", "ABELE_TARGET": "reference"}
    with output.open("wb") as file:
        return subprocess.Popen(
            [run.python, "-c", _PROGRAM, path_of_python, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=os.environ | own,
        )


def _require_end(
    run: Run, status: int | None, end: dict[str, Any] | None, printed: Sequence[str]
) -> None:
    """Raise CheckError unless a script has run to completion, in time and without an error.

    Args:
        run: the script.
        status: exit status of the process; None if it was killed at the deadline.
        end: record of the end, if there is one.
        printed: lines that the script has printed.
    """
    if end is not None and not end["error"]:
        return
    last = printed[-_LAST_LINES:]
    said = "\n".join(["What it printed last:", *last]) if last else "It printed nothing."
    if end is not None:
        problem = (
            "failed. Make it run by itself first, with the same arguments.\n"
            f"{end['error'].rstrip()}"
        )
    elif status is None:
        problem = (
            "has not come to its next training step in time. Give it more time, or arguments with "
            "which it has less to do."
        )
    else:
        problem = f"died: its process ended with status {status}. Run it by itself to see why."
    raise CheckError(f"The {run.subject} {problem}\n{said}")
