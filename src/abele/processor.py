"""The processor of this machine: name, cores and instruction sets."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_DESCRIPTION = Path("/proc/cpuinfo")
_GROUP = Path("/sys/fs/cgroup")  # of the container
_OWN_GROUPS = Path("/proc/self/cgroup")
# Linux's field names of a processor's instruction sets: x86, ARM, RISC-V.
_INSTRUCTIONS = ("flags", "Features", "isa")


def name() -> str:
    """Return the processor's name, such as ``AMD EPYC``; its architecture if unknown."""
    return _described().get("model name") or platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota() -> float | None:
    """Return how many cores' time the container of this process may use; None if unlimited.

    The least of its control group and of those around it. Source: Linux's documentation of control
    groups, ``cpu.max`` of version 2 and the files of 1.
    """
    limits = (re.fullmatch(r"(\d+) (\d+)", each) for each in _quotas())
    return min((int(each[1]) / int(each[2]) for each in limits if each), default=None)


def _quotas() -> Iterator[str]:
    """Return quota and period of each control group of this process."""
    groups = _OWN_GROUPS.read_text("utf-8").splitlines() if _OWN_GROUPS.exists() else ()
    for _, kinds, path in (each.split(":", 2) for each in groups):
        if kinds and "cpu" not in kinds.split(","):
            continue
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if kinds else ("cpu.max",)
        own = (_GROUP / "cpu" if kinds else _GROUP) / path.lstrip("/")
        for folder in (own, *own.parents):
            with contextlib.suppress(OSError):
                yield " ".join((folder / name).read_text("ascii").strip() for name in names)
            if folder == _GROUP:
                break


def instructions() -> str:
    """Return a short hash of the processor's instruction sets.

    Code for ``-march=native`` may use any of them, also those that torch does not list. The same
    instructions give the same hash on another machine, with or without a compiler. Where the system
    does not list them, it is a hash of the processor's name.
    """
    described = _described()
    listed = next((described[key] for key in _INSTRUCTIONS if key in described), name())
    return hashlib.sha256(" ".join(sorted(listed.split())).encode()).hexdigest()[:12]


def listed() -> frozenset[str]:
    """Return the instruction sets that Linux lists for the processor; empty if unknown."""
    described = _described()
    return frozenset(each for key in _INSTRUCTIONS for each in described.get(key, "").split())


def has(instruction: str) -> bool:
    """Return whether the processor has an instruction set, by Linux's name."""
    return instruction in listed()


@functools.cache
def _described() -> Mapping[str, str]:
    """Read the first processor's fields of /proc/cpuinfo; empty if not on Linux."""
    try:
        first = _DESCRIPTION.read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
