"""A command that wants an answer instead of the first compile of a program that it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Generator

from abele.errors import FitError
from abele.fit import children
from abele.fit.answers import Answered, Kept, Refused, Report

#: Limits that somebody asks for, each with the process that does: a fork has them, too.
_asked: list[tuple[int, str | None, Kept]] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sought:
    """What has become of a question so far.

    Attributes:
        kept: what this process has answered.
        of_others: who of the processes that it starts has taken the question.
    """

    kept: Kept
    of_others: children.Request

    def is_taken(self) -> bool:
        """Whether a model has come, for which the answer is sought."""
        return self.kept.is_sought or self.of_others.is_claimed()


@contextlib.contextmanager
def instead_of_compiling(limit: str | None) -> Generator[Sought]:
    """While open, the first model that would be compiled raises ``Answered``.

    That model may be one of a process that starts meanwhile.

    Args:
        limit: as for ``limits.of_machine``; None for the device that would be used.

    Yields:
        What has become of it.

    Raises:
        Answered, Refused: there is an answer, or none for this model; at the end at the latest.
    """
    kept = Kept()
    _asked.append((os.getpid(), limit, kept))
    try:
        with kept.in_any_case(), children.asked("fit", limit) as of_others:
            yield Sought(kept=kept, of_others=of_others)
    finally:
        _asked.pop()


def answer(of: Callable[[str | None], Report]) -> None:
    """Where somebody asks, answer; front-ends call this before they compile.

    Args:
        of: the answer for a limit; raises ``FitError`` if there is none, which ends the program.

    Raises:
        Answered, Refused: this process asks.
        SystemExit: a process that this one descends from asks, and has the answer now.
    """
    if _asked and _asked[-1][0] == os.getpid():
        _, limit, kept = _asked[-1]
        if kept.told is not None:
            raise kept.told
        kept.is_sought = True
        try:
            report = of(limit)
        except FitError as error:
            kept.end(Refused(str(error)))
        except Exception as error:
            kept.problem = f"{type(error).__name__}: {error}"
            raise
        kept.end(Answered(report))
    request = children.of_ancestor("fit")
    if request is None:
        return
    if not request.claim():  # another process answers, or nobody waits any more
        raise SystemExit(0)
    try:
        report = of(request.wanted)
    except FitError as error:
        request.refuse(str(error))
    request.answer(report)
