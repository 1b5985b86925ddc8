"""Run a script in a process of its own, and read the messages that ``watch`` describes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from abele.errors import CheckError

GO = "go"

# Python's own search path is passed on: the package need not be installed.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from abele.port.check.script import main
main(sys.argv[2])
"""
_LAST_LINES = 15
_WARNING = re.compile(r"(?:\bHostChangeWarning: |\[warning\] )(.*)")
# A process that the script has started may have the other end of a pipe.
_CLOSING_S = 5.0


class Script:
    """A script that runs, and waits for an answer after each step.

    Args:
        path: of the script.
        arguments: of the script.
        port: it runs through a front-end, on the target ``reference``.
        steps: it ends after so many.
        seed: of the random numbers that it starts with.
        deadline: when it is too late, on the clock of ``time.monotonic``.
        python: the command that runs Python.
        name: what it is called, ``original`` or ``port``.

    Attributes:
        path: as given.
        name: as given.
        wrapped: it runs a training model, and does not call backward itself.
    """

    def __init__(
        self,
        path: Path,
        arguments: Sequence[str],
        *,
        port: bool,
        steps: int,
        seed: int,
        deadline: float,
        python: str = sys.executable,
        name: str = "",
    ):
        self.path, self.name = path, name or ("port" if port else "original")
        self.wrapped = port
        self._deadline = deadline
        self._output = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed by close()
        request = {"script": str(path), "arguments": list(arguments), "port": port}
        request |= {"steps": steps, "seed": seed}
        path_of_python = json.dumps([os.path.abspath(each) for each in sys.path])
        # Both compute on the host, where the same operators give the same bits.
        own = {"CUDA_VISIBLE_DEVICES": "", "ABELE_TARGET": "reference"}
        self._process = subprocess.Popen(
            [python, "-c", _PROGRAM, path_of_python, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=os.environ | own,
        )
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._messages.put(line.decode())
        self._messages.put("")

    def message(self) -> dict[str, Any]:
        """Return the next message; see ``watch``.

        Raises:
            CheckError: the script failed, its process died, or it takes too long.
        """
        try:
            line = self._messages.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            raise CheckError(
                f"The {self.name} {str(self.path)!r} has not come to its next training step in "
                f"time. Give it more time, or arguments with which it has less to do.\n"
                f"{self._said()}"
            ) from None
        if not line:
            code = self._process.wait()
            raise CheckError(
                f"The process of the {self.name} {str(self.path)!r} ended with status {code}. Run "
                f"it by itself to see why.\n{self._said()}"
            )
        message = json.loads(line)
        if message["kind"] == "end" and message["error"]:
            raise CheckError(
                f"The {self.name} {str(self.path)!r} failed. Make it run by itself first, with the "
                f"same arguments.\n{message['error'].rstrip()}\n{self._said()}"
            )
        return message

    def answer(self, text: str) -> None:
        """Answer a message of kind ``state``."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is among the messages
            self._process.stdin.write(f"{text}\n".encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join(_CLOSING_S)
        streams = self._process.stdin, None if self._reader.is_alive() else self._process.stdout
        for stream in streams:
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._output.close()

    def warned(self) -> list[str]:
        """Return what poptorch has warned of, such as values that the host has changed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return [found[1].rstrip(".") for each in lines if (found := _WARNING.search(each))]

    def _said(self) -> str:
        """Return the end of what the script has printed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join(["What it printed last:", *lines]) if lines else "It printed nothing."


#: A model, by its number, after so many of its updates; 0 is its start.
State = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """An update that a script has reported.

    Attributes:
        losses: of it; none where a call of several updates returns only the last one's.
        inputs: shape and digest of each input of the model; of the whole call.
        alone: its call made no other update.
        line: the user's line that made it.
    """

    losses: tuple[float, ...]
    inputs: tuple[Mapping[str, Any], ...]
    alone: bool
    line: str


@dataclasses.dataclass
class Model:
    """A model that a script has reported.

    Attributes:
        name: of it; empty if it is not known.
        tensors: shape, kind and line of each by name.
    """

    name: str = ""
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


class Messages:
    """Reads the messages of a script.

    Args:
        script: runs.

    Attributes:
        script: as given.
        models: in the order of their first updates.
        digests: of a model's tensors, by state.
        order: states after updates, in the order in which they were made.
        updates: by the state after it.
        waiting: the state that the script waits with; None if it does not wait.
        notes: in words, each once.
        ended: it has ended by itself.
    """

    def __init__(self, script: Script):
        self.script = script
        self.models: list[Model] = []
        self.digests: dict[State, dict[str, str]] = {}
        self.order: list[State] = []
        self.updates: dict[State, Update] = {}
        self.waiting: State | None = None
        self.notes: list[str] = []
        self.ended = False

    def reach_state(self) -> State | None:
        """Read until the script waits with a state, and return it; None if it ends before."""
        while self.waiting is None and not self.ended:
            self._read()
        return self.waiting

    def go_on(self) -> None:
        """Let the script go on after the state that it waits with."""
        self.waiting = None
        self.script.answer(GO)

    def save(self, path: str) -> None:
        """Have the script save the tensors of that state, and go on."""
        self.waiting = None
        self.script.answer(path)
        while self._read() != "saved":
            pass

    def finish(self) -> None:
        """Read what a script still reports of updates whose states are known."""
        while self.order and self.order[-1] not in self.updates and not self.ended:
            if self.waiting is not None:
                self.go_on()
            self._read()

    def _read(self) -> str:
        message = self.script.message()
        kind: str = message["kind"]
        if kind == "model":
            self._add_model(message)
        elif kind == "state":
            self.waiting = message["model"], message["step"]
            self.digests[self.waiting] = message["digests"]
            if message["step"]:
                self.order.append(self.waiting)
        elif kind == "step":
            self._add_updates(message)
        elif kind == "note" and message["text"] not in self.notes:
            self.notes.append(message["text"])
        elif kind == "end":
            self.ended = True
        return kind

    def _add_model(self, message: Mapping[str, Any]) -> None:
        if message["model"] == len(self.models):
            self.models.append(Model())
        number: int = message["model"]
        self.models[number].name = message["name"]
        self.models[number].tensors.update(message["tensors"])

    def _add_updates(self, message: Mapping[str, Any]) -> None:
        first, last = message["first"], message["last"]
        losses, count = tuple(message["losses"]), last - first + 1
        each, rest = divmod(len(losses), count)
        for position, step in enumerate(range(first, last + 1)):
            if each and not rest:
                mine = losses[each * position : each * (position + 1)]
            else:
                mine = losses if step == last else ()
            self.updates[message["model"], step] = Update(
                losses=mine, inputs=tuple(message["inputs"]), alone=count == 1, line=message["line"]
            )
