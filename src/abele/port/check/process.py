"""Starts a script in a process of its own, and reads its messages."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from abele.errors import CheckError

# Python's own search path is passed on: the package need not be installed.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from abele.port.check.launcher import main
main(sys.argv[2])
"""
_LAST_LINES = 15
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
        variables: of its environment, beside those of this process.

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
        variables: Mapping[str, str] | None = None,
    ):
        self.path, self.name = path, name or ("port" if port else "original")
        self.wrapped = port
        self._deadline = deadline
        self._output = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed by close()
        request = {"script": str(path), "arguments": list(arguments), "port": port}
        request |= {"steps": steps, "seed": seed}
        path_of_python = json.dumps([os.path.abspath(each) for each in sys.path])
        # Both compute on the host, where the same operators give the same bits.
        own = {"CUDA_VISIBLE_DEVICES": "", "ABELE_TARGET": "reference"} | {**(variables or {})}
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
        """The next message; see ``channel``.

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

    def _said(self) -> str:
        """The end of what the script has printed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join(["What it printed last:", *lines]) if lines else "It printed nothing."
