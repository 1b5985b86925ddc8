"""The processes that use a device through abele, from their files of ``abele.runtime``."""

import contextlib
import json
import os
import platform
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gctools._devices import Device
from gctools.system import System

_FORMAT = 1
_MOST_BYTES = 64 * 1024
_NOT_OURS = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class Hold:
    """A process that uses devices, with its user, command and target (cpu, cuda, reference).

    Attributes:
        pid: number of the process, as that process sees it.
        command: program and arguments.
        user: name, or number where no name is known.
        seconds: since it took the device; None if its clock is not ours.
        target: ``cpu``, ``cuda`` or ``reference``.
        devices: ids of the devices; empty if they are not known here.
        elsewhere: the host of a process in another container; None for those of this one.
    """

    pid: int
    command: str
    user: str
    seconds: float | None
    target: str
    devices: tuple[int, ...]
    elsewhere: str | None = None


def list_holds(system: System, devices: list[Device]) -> list[Hold]:
    """Return processes that hold devices, by first device and PID; delete files of dead ones."""
    holds = [
        hold
        for folder in system.folders()
        for path in _files(system, folder)
        for hold in _read(system, path, devices)
    ]
    return sorted(holds, key=lambda hold: (hold.devices[:1] or (len(devices),), hold.pid))


def _files(system: System, folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError:
        system.note(f"{folder} is not for this user: processes of its owner are not listed.")
        return []


def _read(system: System, path: Path, devices: list[Device]) -> Iterator[Hold]:
    try:
        owner, text = _content(path)
        record = json.loads(text)
        if record["format"] != _FORMAT:
            system.note(f"{path} is of another version and is not listed.")
            return
        elsewhere = _elsewhere(system, record)
        if elsewhere is None and not _is_alive(system, record, owner):
            with contextlib.suppress(OSError):
                path.unlink()
            return
        yield from _holds(system, record, owner, elsewhere, devices)
    except OSError as problem:
        # A process that ends just now takes its file along.
        if not isinstance(problem, FileNotFoundError):
            system.note(f"{path} is not for this user.")
    except _NOT_OURS:
        system.note(f"{path} is not a file of ours and is not listed.")


def _content(path: Path) -> tuple[int, str]:
    """Return owner and text of a small regular file; raise for pipes and links."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise ValueError(f"{path} is no plain small file")
        return status.st_uid, file.read(_MOST_BYTES).decode()


def _elsewhere(system: System, record: dict[str, Any]) -> str | None:
    """Return the container or host of a process with a foreign PID; None if local."""
    boot = system.text(system.proc / "sys/kernel/random/boot_id")
    same_kernel = record["boot"] == boot
    if same_kernel and record["namespace"] == _namespace(system):
        return None
    host = system.text(system.proc / "sys/kernel/hostname") or platform.node()
    if not same_kernel and record["host"] == host:
        return None  # of before the machine was started: no process of ours has that PID and age
    return str(record["host"])


def _namespace(system: System) -> str | None:
    try:
        return os.readlink(system.proc / "self/ns/pid")
    except OSError:
        return None


def _is_alive(system: System, record: dict[str, Any], owner: int) -> bool:
    """Return whether the process of a record still runs; a reused PID does not count."""
    pid, started = int(record["pid"]), record["started"]
    if record["boot"] != system.text(system.proc / "sys/kernel/random/boot_id"):
        return False
    folder = system.proc / str(pid)
    text = system.text(folder / "stat")
    if text is None and system.text(system.proc / "1/stat") is not None:
        return False
    if text is None:  # processes of others are hidden, but a signal still tells
        try:
            os.kill(pid, 0)
        except OSError as problem:
            return isinstance(problem, PermissionError)
        return True
    state, *rest = text.rpartition(")")[2].split()
    # Under qemu-user, the process itself saw a later start.
    return state not in "ZX" and int(rest[18]) <= (started or 0) and _owner(folder) in (owner, None)


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _holds(
    system: System, record: dict[str, Any], owner: int, elsewhere: str | None, devices: list[Device]
) -> Iterator[Hold]:
    """Yield one hold per target of a process, regardless of its number of models."""
    pid = int(record["pid"])
    since: dict[tuple[str, str | None], float] = {}
    for entry in record["held"]:
        key = (str(entry["target"]), entry.get("uuid"))
        since[key] = min(float(entry["since"]), since.get(key, float("inf")))
    allowed = _allowed(system, pid) if elsewhere is None else None
    for (target, uuid), began in since.items():
        yield Hold(
            pid=pid,
            command=_command(system, record, elsewhere),
            user=_user(owner),
            seconds=max(0.0, time.time() - began),
            target=target,
            devices=_on(devices, uuid, target, allowed),
            elsewhere=elsewhere,
        )


def _on(
    devices: list[Device], uuid: str | None, target: str, allowed: frozenset[int] | None
) -> tuple[int, ...]:
    if uuid is not None or target == "cuda":
        return tuple(device.id for device in devices if device.uuid == uuid and uuid is not None)
    sockets = [device for device in devices if device.kind == "CPU"]
    return tuple(d.id for d in sockets if allowed is None or not d.cpus or d.cpus & allowed)


def _allowed(system: System, pid: int) -> frozenset[int] | None:
    """Return the CPU affinity of a process; None if unknown."""
    text = system.text(system.proc / str(pid) / "status") or ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return parse_list(value.strip())
    return None


def parse_list(text: str) -> frozenset[int]:
    """Parse a number list such as ``0-3,8``."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _command(system: System, record: dict[str, Any], elsewhere: str | None) -> str:
    """Return a process's command line, from the kernel if available: processes may change it."""
    if elsewhere is None:
        text = system.text(system.proc / str(record["pid"]) / "cmdline")
        if text:
            return text.rstrip("\0").replace("\0", " ")
    return " ".join(map(str, record["command"]))


def _user(owner: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(owner).pw_name
    except (ImportError, KeyError):
        return str(owner)
