"""Runs of poprun in tests: forked from one process that has loaded torch, and checked for orphans.

Loading torch takes longer than a whole run; that of `Server` is forked from one that has, and loads
poprun once. Its forked child runs the real command line in its own session, as a shell would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from helpers.warm_python import python

ROOT = Path(__file__).parents[2]
MARK = "POPRUN_TEST_MARK"
PATIENCE = 60  # seconds


@dataclasses.dataclass
class Run:
    """A finished or running poprun."""

    pid: int
    mark: str
    folder: Path
    server: Server
    status: int | None = None

    @property
    def out(self) -> str:
        return self._printed("stdout")

    @property
    def err(self) -> str:
        return self._printed("stderr")

    def _printed(self, name: str) -> str:
        file = self.folder / name
        return file.read_bytes().decode() if file.exists() else ""

    @property
    def log(self) -> list[str]:
        """poprun's own lines, without time and process number."""
        return [line.split(" POPRUN ")[1] for line in self.err.splitlines() if " POPRUN " in line]

    def lines(self, rank: int, stream: str = "stdout") -> list[str]:
        tag = f"[1,{rank}]<{stream}>:"
        text = self.out if stream == "stdout" else self.err
        return [line.removeprefix(tag) for line in text.split("\n") if line.startswith(tag)]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Returns the exit status, and makes sure that nothing of the run is left."""
        self.status = int(self.server.answer())
        self.server.running = None
        assert not self.orphans(), f"processes are left: {self.orphans()}"
        return self.status

    def processes(self) -> dict[int, str]:
        """Command lines of living processes of this run.

        Forked programs have the environment of their server; what tells them is the run's folder.
        """
        needle, place = f"{MARK}={self.mark}".encode(), str(self.folder.resolve())
        results = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (
                    needle in (folder / "environ").read_bytes()
                    or os.readlink(folder / "cwd") == place
                ):
                    results[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return results

    def orphans(self) -> dict[int, str]:
        """What is left, some seconds later."""
        deadline = time.monotonic() + 20
        while (result := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return result

    def until(self, condition, what: str) -> None:
        """Waits until something holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what}; {self.out} {self.err}"
            time.sleep(0.02)


class Server:
    """Forks runs of poprun, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [python(), __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
            },
        )
        self.running: Run | None = None
        assert self.answer() == "ready"

    def start(self, folder: Path, *arguments: object, ignored: int = 0, **environment: str) -> Run:
        mark = uuid.uuid4().hex
        for name in ("stdout", "stderr"):
            (folder / name).unlink(missing_ok=True)
        variables = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS",)}
        request = {
            "argv": [str(word) for word in arguments],
            "folder": str(folder),
            "ignored": ignored,
            "environment": variables | environment | {MARK: mark},
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        self.running = Run(int(self.answer()), mark, folder, self)
        return self.running

    def tidy(self) -> None:
        """Ends what a failed test left running."""
        if self.running:
            self.running.signal(signal.SIGKILL)
            self.running.wait()

    def run(self, folder: Path, *arguments: object, **environment: str) -> Run:
        run = self.start(folder, *arguments, **environment)
        run.wait()
        return run

    def answer(self) -> str:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            self.close()
            raise AssertionError("poprun did not end")
        return self._process.stdout.readline().decode().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()


def _serve() -> None:
    import popdist._run.agent  # noqa: F401
    from popdist._run.cli import main

    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if request["ignored"]:
                signal.signal(request["ignored"], signal.SIG_IGN)
            os.chdir(request["folder"])
            os.environ.clear()
            os.environ.update(request["environment"])
            for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
                flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                os.dup2(os.open(name, flags, 0o600), number)
            status = main(request["argv"])
            sys.stdout.flush()
            os._exit(status)
        print(pid, flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve()
