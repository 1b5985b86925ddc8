"""The verdict on compiled programs: their agreement with interpreted ones on one machine.

A C++ compiler, a processor or a kernel library that nobody has tried before may compute something
else than the program says. So the first results of a compiled program are compared with those of
the interpreter before they are used. The verdict is kept with the executable, for the machine that
reached it: another one compares again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from abele import processor

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

    It covers the machine code, the target's description (torch, kernel library, instructions), the
    compiler of the kernels and the processor.
    """
    digest = hashlib.sha256()
    target = made.target
    facts = [made.key, target.describe(), target.toolchain(), processor.name()]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name in sorted(made.compiled):
        digest.update(name.encode() + hashlib.sha256(made.compiled[name].payload).digest())
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proving:
    """Records that have to know the verdict on an executable's programs.

    Attributes:
        running: the record of what runs.
        source: keeps executables that were proven; None where nothing is kept.
    """

    running: Running
    source: ExecutableSource | None
