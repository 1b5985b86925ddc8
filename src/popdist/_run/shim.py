"""The process between poprun and one instance: starts the instance and ends its descendants.

Runs by itself, with the standard library only, as ``python -I -S shim.py PROGRAM ARGUMENTS`` with
its orders in a variable; on another host ssh starts it with ``--remote`` and it reads its orders
from standard input, which also tells it that poprun is gone. It ends with the program's status. Its
last line on stderr, which poprun takes out, says how the program ended and when.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

TYPE_CHECKING = False  # as importing typing would take as long as the rest
if TYPE_CHECKING:
    from typing import Any

ORDERS = "POPRUN_INSTANCE"
REMOTE = "--remote"
EXITED, KILLED, STOPPED, MISSING, SSH = "exited", "killed", "stopped", "missing", "ssh"
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # of prctl(2)
_STOPPING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # Windows lacks two
_SSH_FAILED = 255


def main() -> int:
    """Start one instance, locally or through ssh, and return the exit status."""
    if sys.argv[1:] == [REMOTE]:
        lines = _input()
        received = json.loads(next(lines, b"null"))
        if received is None:
            return 1  # poprun ended before it said what to do
        orders, command = received["orders"], received["command"]
        os.environ.update(received["environment"])
        try:
            os.chdir(orders["folder"])
        except OSError as error:
            return _missing(orders, f"the folder {orders['folder']} cannot be entered: {error}")
        return _Instance(orders).run(command, lines)
    orders, command = json.loads(os.environ.pop(ORDERS)), sys.argv[1:]
    _prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != orders["parent"]:
        return 1  # poprun died before it could take us with it
    if orders["ssh"]:
        return _Connection(orders).run(command)
    return _Instance(orders).run(command)


class _Process:
    """A program in its own process group, to which the shim forwards signals."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.process: subprocess.Popen[bytes] | None = None
        self.stop_signal: int | None = None  # the first signal that should end us
        for number in (getattr(signal, name) for name in _STOPPING):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGALRM, self.kill)

    def start(self, command: list[str], stdin: int | None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            process_group=0,
            preexec_fn=lambda: _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL),
        )
        if self.stop_signal:
            self.stop(self.stop_signal)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait()

    def stop(self, number: int, _frame: object = None) -> None:
        if self.stop_signal is None:
            signal.setitimer(signal.ITIMER_REAL, self.grace())
        self.stop_signal = number
        self.signal(number)

    def grace(self) -> float:
        return self.orders["grace"] or 0.01  # as 0 would mean never

    def kill(self, *_: object) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


class _Instance(_Process):
    """The instance's program, running on this host."""

    def run(self, command: list[str], lines: Iterator[bytes] | None = None) -> int:
        become_subreaper()
        _place(self.orders)
        shared = self.orders["stdin"] and lines is None and not os.isatty(0)
        try:
            self.start(command, None if shared else subprocess.DEVNULL)
        except OSError as error:
            return _missing(self.orders, f"{command[0]} cannot be started: {error.strerror}")
        if lines is not None:
            threading.Thread(target=self._follow, args=(lines,), daemon=True).start()
        code = self.wait()
        kind = STOPPED if self.stop_signal else KILLED if code < 0 else EXITED
        _report(self.orders, kind, abs(code))
        end_descendants()
        return 128 - code if code < 0 else code

    def _follow(self, lines: Iterator[bytes]) -> None:
        """Forward signals read from standard input; send SIGTERM at its end."""
        for line in lines:
            os.kill(os.getpid(), int(line))
        os.kill(os.getpid(), signal.SIGTERM)


class _Connection(_Process):
    """The instance's program on another host, through ssh and a shim there."""

    ordered = False  # whether signals may follow

    def run(self, command: list[str]) -> int:
        orders = self.orders
        environment = {n: os.environ[n] for n in orders["forwarded"] if n in os.environ}
        message = {"orders": orders, "command": command, "environment": environment}
        try:
            self.start(orders["ssh"], subprocess.PIPE)
        except OSError as error:
            return _missing(orders, f"{orders['ssh'][0]} cannot be started: {error.strerror}")
        self.send(json.dumps(message))
        self.ordered = True
        if self.stop_signal:
            self.send(self.stop_signal)
        code = self.wait()
        if code == _SSH_FAILED and not self.stop_signal:
            _report(orders, SSH, _SSH_FAILED)
        return 128 - code if code < 0 else code

    def send(self, line: object) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        data = f"{line}\n".encode()
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self.process.stdin.fileno(), data) :]

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            super().signal(number)
        elif self.ordered:
            self.send(int(number))

    def grace(self) -> float:
        return super().grace() + 2  # a moment for the shim there to say how it ended


def _input() -> Iterator[bytes]:
    """Yield lines of standard input, without ``sys.stdin``, whose lock blocks the exit."""
    partial = b""
    while data := os.read(0, 1 << 16):
        *lines, partial = (partial + data).split(b"\n")
        yield from lines


def become_subreaper() -> None:
    """Make this process the parent of orphaned descendants (Linux subreaper)."""
    _prctl(_SET_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def _missing(orders: dict[str, Any], sentence: str) -> int:
    print(sentence, file=sys.stderr, flush=True)
    _report(orders, MISSING, 127)
    return 127


def _report(orders: dict[str, Any], kind: str, value: int) -> None:
    line = f"{orders['mark']}{kind} {value} {time.time():.6f}{orders['mark']}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())


def _place(orders: dict[str, Any]) -> None:
    """Bind this instance to cores, threads and a network interface."""
    if orders["bind"]:
        cores = share(orders["local_rank"], orders["local_size"], cores_by_node())
        os.sched_setaffinity(0, cores)
    count = threads(len(os.sched_getaffinity(0)), 1 if orders["bind"] else orders["local_size"])
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    # Through a pipe, Python would keep lines back until there are kilobytes of them.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if orders["subnet"]:
        name = next((n for n, a in interfaces().items() if within(a, orders["subnet"])), None)
        if name:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def threads(cores: int, instances: int) -> int:
    """Return the number of threads per instance."""
    return max(1, cores // instances)


def cores_by_node(root: str = "/sys/devices/system/node") -> list[int]:
    """Return the cores that this process may use, sorted by NUMA node."""
    usable = os.sched_getaffinity(0)
    ordered = []
    with contextlib.suppress(OSError):
        folders = [name for name in os.listdir(root) if name.startswith("node")]
        for name in sorted((n for n in folders if n[4:].isdigit()), key=lambda n: int(n[4:])):
            with open(os.path.join(root, name, "cpulist"), encoding="utf-8") as file:
                ordered += [core for core in _numbers(file.read()) if core in usable]
    return ordered + sorted(usable - set(ordered))


def share(index: int, count: int, cores: list[int]) -> set[int]:
    """Return the cores of one of several instances: a contiguous share; all cores are assigned."""
    if count > len(cores):
        return {cores[index % len(cores)]}
    return set(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


def _numbers(text: str) -> Iterator[int]:
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def interfaces() -> dict[str, str]:
    """Return IPv4 addresses of this host's network interfaces, by name."""
    import fcntl
    import socket
    import struct

    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # one without an address
                answer = fcntl.ioctl(asking.fileno(), 0x8915, request)  # SIOCGIFADDR
                addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def within(address: str, network: str) -> bool:
    """Return whether an address is in a subnet such as 10.1.0.0/16."""
    import ipaddress

    return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)


def end_descendants() -> None:
    """Terminate remaining descendants of this process and wait for them.

    Helpers that clean up after a killed program, such as those of shared memory, end by themselves
    at once and ignore SIGTERM; they get the time for it.
    """
    for number, seconds in ((None, 0.5), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
        if number:
            for process in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                # Orphans become children of this process, so that no children means nothing left.
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
            except ChildProcessError:
                return


def descendants(process: int) -> list[int]:
    """Return the PIDs of all living descendants of a process, from /proc."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(name)] = int(parent)
    processes, todo = [], [process]
    while todo:
        above = todo.pop()
        below = [child for child, parent in parents.items() if parent == above]
        processes += below
        todo += below
    return processes


if __name__ == "__main__":
    sys.exit(main())
