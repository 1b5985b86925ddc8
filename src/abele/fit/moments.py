"""The moments of a run that may be its peak, each with everything that is alive then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from abele.fit.estimate import Interval, Moment, Part
from abele.fit.intermediates import Need
from abele.fit.results import Results

#: Weights, optimizer state and inputs are copied for each of these runs while compiled programs
#: are compared with interpreted ones: two at least, one more for each further trial, and two in
#: float64.
_COPIES = Interval(2, 2, 12)
_COPIED = ("parameters", "buffers", "optimizer state", "gradient sums", "inputs of a call")


def start(always: Sequence[Part], kept: Interval) -> Moment:
    """Before the first call.

    Args:
        always: what lives for the whole run.
        kept: by programs. What they share is in use then only where they were measured.
    """
    parts = (*always, *_part("kept by programs", kept, always=True))
    return Moment(name="start", operation="the session takes its state", parts=parts)


def of_program(
    name: str, need: Need, always: Sequence[Part], beside: Interval, results: Results
) -> Moment:
    """While a program runs.

    Args:
        name: of the moment.
        need: of the program.
        always: what lives for the whole run.
        beside: what programs keep beside that.
        results: of calls.
    """
    applies = name.partition(",")[0] == "apply"
    earlier = results.at_update if applies else results.earlier
    parts = (
        *always,
        *_before(results),
        *need.parts,
        *_part("results of earlier micro-batches", earlier),
        *_part("kept by programs", beside, always=True),
    )
    return Moment(name=name, operation=need.operation, parts=parts, tensors=need.tensors)


def joining(always: Sequence[Part], kept: Interval, results: Results) -> list[Moment]:
    """Return the moments at which results of micro-batches are concatenated; none for one of them.

    Args:
        always: parts that are always live.
        kept: parts that programs keep.
        results: results of calls.
    """
    if results.joining is None:
        return []
    parts = (
        *always,
        *_before(results),
        *_part("results of micro-batches, and joined", results.joining),
        *_part("kept by programs", kept, always=True),
    )
    operation = "results of micro-batches are joined"
    return [Moment(name="the end of a call", operation=operation, parts=parts)]


def comparison(
    name: str,
    first: Need,
    then: Need,
    always: Sequence[Part],
    others: Iterable[Need],
    results: Results,
) -> Moment:
    """Return the moment when one micro-batch runs through both kinds of programs, on copies.

    Args:
        name: of the program.
        first: need of the program, interpreted.
        then: need of the program, compiled.
        always: what lives for the whole run.
        others: needs of all other programs that are compiled.
        results: of calls.
    """
    state = sum(part.size.high for part in always if part.role in _COPIED)
    larger = max(first, then, key=lambda each: Interval.sum(p.size for p in each.parts).expected)
    beside = together([first, then, *others]) - larger.reserved
    parts = (
        *always,
        *_before(results),
        *larger.parts,
        *_part("kept by programs", Interval.exact(beside), always=True),
        Part(role="copies to compare", size=_COPIES.scaled(state)),
    )
    return Moment(
        name=f"{name}, compared before use",
        operation="compiled programs are compared with interpreted ones",
        parts=parts,
        tensors=larger.tensors,
    )


def together(needs: Iterable[Need]) -> int:
    """Bytes that programs keep between calls: the shared ones are those of the largest."""
    several = list(needs)
    alone = sum(each.reserved - each.shared for each in several)
    return alone + max((each.shared for each in several), default=0)


def _before(results: Results) -> list[Part]:
    return _part("results of the call before", results.before, always=True)


def _part(role: str, size: Interval, *, always: bool = False) -> list[Part]:
    return [Part(role=role, size=size, always=always)] if size.high else []
