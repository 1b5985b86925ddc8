"""The adapter for other hosts: ssh, or what ``POPRUN_SSH`` names.

Whatever starts a command on another host, passes on its standard streams and ends with its exit
status can take the place of ssh: ``POPRUN_SSH="ssh -p 2222"``. Three things are asked of a host: it
can be reached without a password, the working folder is there, and this Python with this package is
installed at the same path.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from popdist._run import shim
from popdist._run.command_line import NOT_FOUND, Problem
from popdist._run.placement import FORWARDED

VARIABLE = "POPRUN_SSH"
SHIM = str(Path(shim.__file__).resolve())
_DEFAULT = "ssh"
_OPTIONS = (
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=10",
    "-oServerAliveCountMax=3",
)
_PATIENCE = 40  # seconds, longer than ssh needs to give up
_AT_ONCE = 32
_NO_FOLDER, _NO_PYTHON, _NO_SHIM, _NO_PROGRAM = 61, 62, 63, 64


def command(host: str) -> list[str]:
    """Return the command that starts the shim on a host."""
    return _to(host, shlex.join(["exec", sys.executable, "-I", "-S", SHIM, shim.REMOTE]))


def check_hosts(hosts: Iterable[str], program: str) -> None:
    """Ask all hosts, at the same time, whether a run can start there."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for problem in pool.map(lambda host: _problem(host, program), hosts):
            if problem:
                raise problem


def _to(host: str, script: str) -> list[str]:
    words = shlex.split(os.environ.get(VARIABLE) or _DEFAULT)
    options = _OPTIONS if Path(words[0]).name == "ssh" else ()
    return [*words, *options, host, shlex.join(["/bin/sh", "-c", script])]


def _problem(host: str, program: str) -> Problem | None:
    folder, python = os.getcwd(), sys.executable
    variables = " ".join(f"{n}={shlex.quote(os.environ[n])}" for n in FORWARDED if n in os.environ)
    lines = (
        f"cd {shlex.quote(folder)} || exit {_NO_FOLDER}",
        f"test -x {shlex.quote(python)} || exit {_NO_PYTHON}",
        f"test -r {shlex.quote(SHIM)} || exit {_NO_SHIM}",
        f"export {variables}",
        f"command -v {shlex.quote(program)} >/dev/null || exit {_NO_PROGRAM}",
    )
    try:
        done = subprocess.run(
            _to(host, "; ".join(lines)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return Problem(f"The host {host} did not answer within {_PATIENCE} s.")
    except OSError as error:
        return Problem(f"{_to(host, '')[0]} cannot be started: {error.strerror}; see {VARIABLE}.")
    lacks = {
        _NO_FOLDER: f"no folder {folder}; start poprun in one that all hosts have",
        _NO_PYTHON: f"no Python at {python}; install the same environment on all hosts",
        _NO_SHIM: f"no {SHIM}; install the same environment on all hosts",
        _NO_PROGRAM: f"no program {program}",
    }
    if done.returncode == 0:
        return None
    if done.returncode in lacks:
        status = NOT_FOUND if done.returncode == _NO_PROGRAM else 2
        return Problem(f"The host {host} has {lacks[done.returncode]}.", status)
    errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = errors[-1] if errors else f"it ended with status {done.returncode}"
    return Problem(f"The host {host} cannot be reached: {reason.rstrip('.')}.")
