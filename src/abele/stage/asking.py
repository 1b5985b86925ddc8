"""A command that wants a plan before the first compile of a program that it runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator


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


class Refused(BaseException):
    """There is no plan, and why; no ``except Exception`` of the program catches it."""


_requests: list[Request] = []


@contextlib.contextmanager
def before_compiling(request: Request) -> Generator[list[Request]]:
    """While open, the first model that would be compiled is asked for a plan.

    Yields:
        What has not been asked yet: the request, or nothing.
    """
    waiting = [request]
    _requests[:], before = waiting, _requests[:]
    try:
        yield _requests
    finally:
        _requests[:] = before


def taken() -> Request | None:
    """What somebody wants of the model that is to be compiled now; the next one is not asked."""
    return _requests.pop() if _requests else None
