"""A command that wants a plan before the first compile of a program that it runs.

That compile may be one of a process that the program starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Generator
from typing import NoReturn

from abele.fit import children
from abele.fit.answers import Answered, Kept, Refused, Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is wanted.

    Attributes:
        devices: how many stages work at the same time.
        limit: the memory of each; see ``limits.of_machine``.
        run: the plan is applied and the program goes on; else it ends.
        measure: stages are run and measured before.
        json: the plan is printed as JSON.
    """

    devices: int
    limit: str
    run: bool = False
    measure: bool = False
    json: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """A request that this process has taken, to be answered or refused.

    Attributes:
        request: what is wanted.
        kept: what this process has said, if it asks itself.
        of_ancestor: who asks, if it is another process.
    """

    request: Request
    kept: Kept = dataclasses.field(default_factory=Kept)
    of_ancestor: children.Request | None = None

    def answer(self, report: Report) -> NoReturn:
        """Answer and end the program.

        Raises:
            Answered: this process asked.
            SystemExit: another one did, and has the answer now.
        """
        if self.of_ancestor is None:
            self.kept.end(Answered(report))
        self.of_ancestor.answer(report)

    def refuse(self, why: str) -> NoReturn:
        """Say why there is no plan, and end the program.

        Raises:
            Refused: this process asked.
            SystemExit: another one did.
        """
        if self.of_ancestor is None:
            self.kept.end(Refused(why))
        self.of_ancestor.refuse(why)


#: What is asked for, each with the process that does: a fork has it, too.
_asked: list[tuple[int, Request, children.Request, Kept]] = []


@contextlib.contextmanager
def before_compiling(request: Request) -> Generator[children.Request]:
    """While open, the first model that would be compiled is asked for a plan.

    Yields:
        Who takes the request claims this.

    Raises:
        Answered, Refused: somebody has taken it; at the end at the latest.
    """
    kept, wanted = Kept(), dataclasses.asdict(request)
    with kept.in_any_case(), children.asked("stage", wanted) as of_others:
        _asked.append((os.getpid(), request, of_others, kept))
        try:
            yield of_others
        finally:
            _asked.pop()


def taken() -> Taken | None:
    """What somebody wants of the model that is to be compiled now; the next one is not asked.

    Raises:
        SystemExit: another process has taken the request, and no step is to run.
        Answered, Refused: this one has, and the program goes on nevertheless.
    """
    if _asked and _asked[-1][0] == os.getpid():
        _, request, of_others, kept = _asked[-1]
        if kept.told is not None:
            raise kept.told
        first = of_others.claim()
        return Taken(request=request, kept=kept) if first or not request.run else None
    of_ancestor = children.of_ancestor("stage")
    if of_ancestor is None:
        return None
    request = Request(**of_ancestor.wanted)
    if of_ancestor.claim():
        return Taken(request=request, of_ancestor=of_ancestor)
    if request.run:
        return None
    raise SystemExit(0)
