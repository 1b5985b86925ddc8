"""The verdict on compiled programs: their agreement with interpreted ones on one machine.

A C++ compiler, a processor or a kernel library that nobody has tried before may compute something
else than the program says. So the first results of a compiled program are compared with those of
the interpreter before they are used. The verdict is kept with the executable, for the machine that
reached it: another one compares again. Code in a file of another machine cannot hold it; the user's
cache has a small file for each such verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abele import processor
from abele.kernels.build import cache_folder
from abele.storage import atomic

if TYPE_CHECKING:
    from abele.compile.executable import Executable
    from abele.compile.later import Running
    from abele.compile.sources import ExecutableSource


class ComparisonWarning(UserWarning):
    """Compiled programs did not agree with interpreted ones on this machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Agreement of compiled programs with interpreted ones.

    Attributes:
        machine: hash of everything that the agreement depends on; see ``machine_of``.
        compared: number of compared tensors by role, such as ``{"parameter": 4, "result": 2}``.
        errors: largest error of a tensor by role, relative to the norm of that tensor.
        judged_by: what decided: ``tolerance``, ``rounded weights`` or ``float64``.
        remedy: how the code was made because that of the first choice did not agree; empty if
            that one did.
    """

    machine: str
    compared: Mapping[str, int]
    errors: Mapping[str, float]
    judged_by: str
    remedy: str = ""

    def sentence(self) -> str:
        """Return what was compared and the largest error of each role, as one line."""
        parts = [
            f"{count} {role}{'s' if count > 1 else ''} within {self.errors[role]:.1e}"
            for role, count in self.compared.items()
        ]
        remedy = f", {self.remedy}" if self.remedy else ""
        return f"one micro-batch through both: {', '.join(parts)} ({self.judged_by}){remedy}"


def machine_of(made: Executable) -> str:
    """Return a hash of everything that the agreement of an executable depends on.

    It covers the machine code and its lowering, the target's description (torch, kernel library,
    instructions), the compiler of the kernels and the processor.
    """
    digest = hashlib.sha256()
    target = made.target
    facts = [made.key, target.describe(), target.toolchain(), processor.name()]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name in sorted(made.compiled):
        lowering = made.chosen[name].name if name in made.chosen else ""
        digest.update(f"{name}, {lowering}".encode())
        digest.update(hashlib.sha256(made.compiled[name].payload).digest())
    return digest.hexdigest()[:32]


def to_data(verdict: Verdict | None) -> dict[str, Any]:
    """Return a verdict as JSON values; nothing for None."""
    return {} if verdict is None else dataclasses.asdict(verdict)


def from_data(data: Any) -> Verdict | None:
    """Return the verdict that ``to_data`` wrote; None for anything else, which proves nothing."""
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
    """Keep a verdict in the user's cache; where that cannot be written, the next process compares.

    Its name is a digest of the code, so that no other code can be taken for proven.
    """
    file = _recorded(verdict.machine)
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        atomic.write_text(file, json.dumps(to_data(verdict)))


def recorded(made: Executable) -> Verdict | None:
    """Return the verdict on an executable's code that this machine has recorded, or None."""
    machine = machine_of(made)
    try:
        verdict = from_data(json.loads(_recorded(machine).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    return verdict if verdict is not None and verdict.machine == machine else None


def _recorded(machine: str) -> Path:
    return cache_folder() / "verdicts" / f"{machine}.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proving:
    """Records that have to know the verdict on an executable's programs.

    Attributes:
        running: the record of what runs.
        source: keeps executables that were proven; None where nothing is kept.
    """

    running: Running
    source: ExecutableSource | None
