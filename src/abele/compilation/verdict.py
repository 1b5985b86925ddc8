"""The verdict on compiled programs: their agreement with interpreted ones on one machine.

A C++ compiler, a processor or a kernel library that was never tried may compute something else than
the program says, so the first results of a compiled program are compared with the interpreter's
before they are used. The verdict is stored with the executable, for the machine that reached it;
another one compares again. A file of another machine cannot hold it, so the user's cache has a
small file for each such verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from abele.kernels.build import cache_folder
from abele.storage import atomic

#: Largest difference of compiled from interpreted programs, relative to the norm of each tensor:
#: float32 and wider types.
TOLERANCE = 1e-5
#: The tolerance of programs that compute in float16 or bfloat16.
HALF_TOLERANCE = 5e-3

_MOST_RECORDED = 1000  # a file has some 300 bytes


def tolerance(dtype: torch.dtype) -> float:
    """Return the tolerance of a comparison for a dtype, relative to the tensor's norm."""
    return HALF_TOLERANCE if dtype in (torch.float16, torch.bfloat16) else TOLERANCE


class ComparisonWarning(UserWarning):
    """Compiled programs did not agree with interpreted ones on this machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The agreement of compiled programs with interpreted ones.

    Attributes:
        machine: hash of everything that the agreement depends on; see ``Executable.machine``.
        compared: number of compared tensors by role, such as ``{"parameter": 4, "result": 2}``.
        errors: largest error of a tensor by role, relative to the norm of that tensor.
        judged_by: criterion: ``tolerance``, ``rounded weights``, ``float64`` or ``float32``.
        remedy: how the code was compiled after the first choice did not agree; empty if the
            first choice agreed.
    """

    machine: str
    compared: Mapping[str, int]
    errors: Mapping[str, float]
    judged_by: str
    remedy: str = ""

    def sentence(self) -> str:
        """Return a sentence on the compared programs and the largest error of each role."""
        parts = [
            f"{count} {role}{'s' if count > 1 else ''} within {self.errors[role]:.1e}"
            for role, count in self.compared.items()
        ]
        remedy = f", {self.remedy}" if self.remedy else ""
        return f"one micro-batch through both: {', '.join(parts)} ({self.judged_by}){remedy}"


def to_data(verdict: Verdict | None) -> dict[str, Any]:
    """Serialize a verdict as JSON values; None as an empty dictionary."""
    return {} if verdict is None else dataclasses.asdict(verdict)


def from_data(data: Any) -> Verdict | None:
    """Restore a verdict from its JSON values; None if they are malformed."""
    try:
        return Verdict(
            machine=str(data["machine"]),
            compared={str(role): int(count) for role, count in data["compared"].items()},
            errors={str(role): float(error) for role, error in data["errors"].items()},
            judged_by=str(data["judged_by"]),
            remedy=str(data["remedy"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def record(verdict: Verdict) -> None:
    """Store a verdict in the user's cache, which retains recent verdicts.

    Its name is a digest of the code, so that no other code can be taken for proven. Without one,
    because the cache cannot be written or it was deleted, the next process compares again.
    """
    file = _recorded(verdict.machine)
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        atomic.write_text(file, json.dumps(to_data(verdict)))
        by_age = sorted(file.parent.iterdir(), key=lambda each: each.stat().st_mtime)
        for old in by_age[:-_MOST_RECORDED]:
            old.unlink(missing_ok=True)


def recorded(machine: str) -> Verdict | None:
    """Return the cached verdict on code by its ``Executable.machine`` hash, or None."""
    try:
        verdict = from_data(json.loads(_recorded(machine).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    return verdict if verdict is not None and verdict.machine == machine else None


def _recorded(machine: str) -> Path:
    return cache_folder() / "verdicts" / f"{machine}.json"
