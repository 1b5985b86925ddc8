"""Report of a loaded program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sambaflow.samba._calls.messages import say


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Return a sentence that names the executable and its target.

    Attributes:
        pef: the file.
        target: the target of the engine.
        device: where tensors live.
        executable: hash of the executable.
        origin: ``file`` if the file's own code runs, ``compiled here`` if it does not fit this
            machine, ``interpreted`` if the target runs programs without compiling.
        programs: names of the programs.
        seconds: how long loading took, by part.
        fallback: why a better target could not be used, if so.
    """

    pef: str
    target: str
    device: str
    executable: str
    origin: str
    programs: tuple[str, ...]
    seconds: Mapping[str, float]
    fallback: str | None


def say_loaded(report: Report) -> None:
    reason = f" ({report.fallback})" if report.fallback else ""
    code = {"file": "the file's own code"}.get(report.origin, report.origin)
    say(
        f"PEF {report.pef} runs on target {report.target!r}{reason}, device {report.device}, "
        f"{code}; executable {report.executable[:12]}"
    )
