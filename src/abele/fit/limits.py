"""Memory limits of this machine, and parsing and formatting of sizes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import torch

from abele import systems
from abele.errors import LimitError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)
#: One IPU of the second generation: tiles, and bytes of each.
MK2 = "mk2"
_TILES, _TILE_BYTES = 1472, 624 * 1024
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """A memory limit of a device.

    Attributes:
        name: name on the command line.
        size: bytes.
        of_process: whether the limit applies to the full process, not only to programs.
    """

    name: str
    size: int
    of_process: bool = True

    @property
    def is_mk2(self) -> bool:
        """True if the limit is the memory of a second-generation IPU."""
        return self.name == MK2


def parse_bytes(text: str) -> int:
    """Parse a size such as ``8GiB``, ``500 MB`` or ``123456``; ``8G`` is 8 GiB.

    Raises:
        LimitError: the text is not a size, or not above zero.
    """
    without_sign = text.strip().removeprefix("-")
    match = _SIZE.fullmatch(without_sign)
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise LimitError(
            f"{text!r} is no size. Write a number and a unit, such as 8GiB, 500MB or 123456."
        )
    size = int(float(match[1]) * unit)
    if size <= 0 or without_sign != text.strip():
        raise LimitError(f"A limit of {text!r} leaves no memory. Give a size above zero.")
    return size


def bytes_text(size: float) -> str:
    """Format bytes with three digits and a binary unit, such as ``1.50 GiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1000 and len(units) > 1:
        size, units = size / 1024, units[1:]
    digits = 0 if units[0] == "B" or abs(size) >= 100 else 1 if abs(size) >= 10 else 2
    return f"{size:.{digits}f} {units[0]}"


def shown(name: str, size: int) -> str:
    """Format a memory limit as ``cpu (125 GiB)``, or just ``8GiB`` if the name is a size."""
    match = _SIZE.fullmatch(name)
    explains_itself = match is not None and match[2].lower().endswith("ib")
    return name if explains_itself else f"{name} ({bytes_text(size)})"


def of_machine(name: str) -> Limit:
    """Return the memory limit with a name, such as ``cpu`` or ``cuda:1``, or with a size.

    ``mk2`` is the memory of each IPU that the program uses.

    Raises:
        LimitError: the name is unknown and not a size, or the device does not exist.
    """
    if name == "cpu":
        return Limit(name=name, size=host_memory())
    if name == "cuda" or name.startswith("cuda:"):
        return _of_gpu(name)
    return of_device(name, f"cpu, cuda:0 or {MK2}")


def of_device(name: str, named: str = MK2) -> Limit:
    """Return the memory limit of one pipeline device, ``mk2`` or a size.

    Raises:
        LimitError: the name is unknown and not a size; the message lists ``named``.
    """
    if name != MK2:
        try:
            return Limit(name=name, size=parse_bytes(name))
        except LimitError as error:
            raise LimitError(f"{error} Or {named}.") from None
    return Limit(name=MK2, size=_TILES * _TILE_BYTES, of_process=False)


def host_memory() -> int:
    """Return the host memory in bytes that the machine and the control group allow.

    Raises:
        LimitError: the system does not say.
    """
    size = systems.memory()
    if size is None:
        raise LimitError("This system does not say how much memory it has; give a size, as 8GiB.")
    for path in map(Path, _GROUPS):
        try:
            size = min(size, int(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return size


def _of_gpu(name: str) -> Limit:
    index = name.partition(":")[2] or "0"
    count = torch.cuda.device_count()
    if not index.isdigit() or int(index) >= count:
        has = f"has {count} GPUs, counted from 0" if count else "has no GPU that torch can use"
        raise LimitError(
            f"There is no device {name!r}: this machine {has}. Give a size such as 16GiB instead."
        )
    _, size = torch.cuda.mem_get_info(int(index))
    return Limit(name=name, size=size, of_process=False)
