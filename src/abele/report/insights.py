"""Advice to shorten a run or reduce its memory: at most seven items, each with its saving.

Nothing is said without a number from the run itself. Savings are what is spent there now, so the
most that can be won.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from abele.report import words
from abele.report.journal import Journal
from abele.report.record import Program, Run
from abele.report.status import DISTURBED, Entry, Steady, by_operator, runs_in_call, slower, steady

MOST = 7
# Shares below which nothing is said.
_WAITING, _HANDLING, _EXCHANGING, _ACTIVATIONS = 0.1, 0.15, 0.1, 0.3
# Of operators: a share of the time in programs, and how far from the machine's limit.
_OPERATOR, _FAR, _MOST_OPERATORS = 0.1, 3.0, 2
_SMALL_S = 20e-6  # most of a kernel that takes less is the call
_LEAST_BYTES = 2**20

# What to do, for a caller of the engine; ``Run.advice`` has the words of a front-end.
_ADVICE = {
    "waiting": "Load batches in processes of their own, ahead of time.",
    "between": "Do less between calls, such as reading results, writing files or drawing bars.",
    "handling": "Let one call run several micro-batches: StepConfig(device_iterations=16).",
    "compiling": "Keep executables: build(..., cache=ExecutableCache(FOLDER)).",
    "exchanging": "Exchange less often: StepConfig(gradient_accumulation=n).",
    "operators": "Larger micro-batches: its kernels are so small that most of each is the call.",
    "activations": "Mark activations to stay, so that those between are computed again.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Insight:
    """A cost of a run, and advice to avoid it.

    Attributes:
        what: the observation.
        advice: the option or line that changes it.
        seconds: largest saving in a run like this one; 0 if it saves memory.
        bytes: memory that it would save; 0 if it saves time.
    """

    what: str
    advice: str
    seconds: float = 0.0
    bytes: int = 0

    @property
    def saving(self) -> str:
        """The estimated saving of time, formatted."""
        amount = words.seconds(self.seconds) if self.seconds else words.size(self.bytes)
        return f"up to {amount}"


def insights(run: Run, journal: Journal) -> list[Insight]:
    """Return the advice for a run; savings of time come first, the largest before others."""
    later = steady(journal)
    insights: list[Insight] = [
        *_of_calls(run, later, journal.calls),
        *_of_building(run),
        *_of_compiling_beside(run, journal),
        *_of_exchanges(run, later, journal.calls),
        *(_of_kernels(run, later, journal.calls) if slower(run, journal) < DISTURBED else ()),
        *_of_memory(run),
    ]
    return sorted(insights, key=lambda each: (-each.seconds, -each.bytes))[:MOST]


def _advice(run: Run, topic: str) -> str:
    return run.advice.get(topic, _ADVICE[topic])


def _of_calls(run: Run, later: Steady | None, calls: int) -> Iterator[Insight]:
    if later is None:
        return
    yield from _before_calls(run, later, calls)
    around = later.handed + later.outputs
    if around > _HANDLING * later.in_calls:
        yield Insight(
            what=f"{words.share(around, later.in_calls)} of a call hands inputs and results over.",
            advice=_advice(run, "handling"),
            seconds=around * calls,
        )


def _before_calls(run: Run, later: Steady, calls: int) -> Iterator[Insight]:
    """Split the time before calls into loading and other work, if known."""
    least, share = _WAITING * later.whole, words.share
    if not later.loading:
        if later.waited > least:
            yield Insight(
                what=f"{share(later.waited, later.whole)} of the time passes before calls: the "
                "program loads data, or does something else.",
                advice=_advice(run, "waiting"),
                seconds=later.waited * calls,
            )
        return
    if later.loading > least:
        single = "" if run.loop is None else run.loop.why_single
        why = f" Items are fetched one by one: {single}." if single else ""
        yield Insight(
            what=f"{share(later.loading, later.whole)} of the time waits for batches.{why}",
            advice=_advice(run, "waiting"),
            seconds=later.loading * calls,
        )
    if later.other > least:
        yield Insight(
            what=f"{share(later.other, later.whole)} of the time passes between calls without "
            "waiting for a batch: the program does something else.",
            advice=_advice(run, "between"),
            seconds=later.other * calls,
        )


def _of_building(run: Run) -> Iterator[Insight]:
    build = run.build
    if build is None or build.cache == "hit" or not build.compiled:
        return
    compiling = build.seconds.get("compile", 0.0)
    if compiling < 1:
        return
    if build.cache == "off":
        yield Insight(
            what=f"Compiling took {words.seconds(compiling)} and is done again in the next run.",
            advice=_advice(run, "compiling"),
            seconds=compiling,
        )
    elif build.why and "could not be used" in build.why:
        yield Insight(
            what=f"Compiling took {words.seconds(compiling)}, because {build.why}.",
            advice="The file was replaced; if this happens again, look at the folder's disk.",
            seconds=compiling,
        )


def _of_compiling_beside(run: Run, journal: Journal) -> Iterator[Insight]:
    """Advise on compilation in another process, which a cache would avoid."""
    left = sum(each.compiling for each in journal.windows)
    in_calls = sum(each.in_calls for each in journal.windows)
    if run.build is not None and run.build.cache == "off" and left > _HANDLING * in_calls:
        yield Insight(
            what=f"{words.share(left, in_calls)} of the time of calls was left to a process that "
            "compiled meanwhile, which is done again in the next run.",
            advice=_advice(run, "compiling"),
            seconds=left,
        )


def _of_exchanges(run: Run, later: Steady | None, calls: int) -> Iterator[Insight]:
    took = run.exchanged.get("seconds", 0.0)
    if later is None or took < _EXCHANGING * later.whole * calls:
        return
    yield Insight(
        what=f"Exchanges with other instances took {words.seconds(took)}, waiting included.",
        advice=_advice(run, "exchanging"),
        seconds=took,
    )


def _of_kernels(run: Run, later: Steady | None, calls: int) -> Iterator[Insight]:
    """Operators that take much of the time, and much more than the machine needs."""
    timed = [each for each in run.programs if each.timing is not None]
    whole = sum(runs_in_call(run, each) * each.timing.seconds for each in timed if each.timing)
    if later is None or not whole:
        return
    slow: list[Insight] = []
    for program in timed:
        assert program.timing is not None
        part = program.timing.whole
        weight = runs_in_call(run, program) * program.timing.seconds / whole
        for (phase, name), entry in by_operator(program.timing) if part else ():
            if weight * entry.seconds < _OPERATOR * part or entry.seconds < _FAR * entry.least:
                continue
            saved = weight * (entry.seconds - entry.least) / part * later.computed * calls
            times = f"{entry.seconds / entry.least:.0f} times" if entry.least else "far more than"
            slow.append(
                Insight(
                    what=f"{name} of {phase} takes {words.share(weight * entry.seconds, part)} of "
                    f"the time in programs, {times} what this machine needs for its bytes and "
                    "operations.",
                    advice=_where(run, program, phase, name, entry),
                    seconds=saved,
                )
            )
    yield from sorted(slow, key=lambda each: -each.seconds)[:_MOST_OPERATORS]


def _where(run: Run, program: Program, phase: str, name: str, entry: Entry) -> str:
    """Return the advice for an operator: larger kernels, or the line of the longest."""
    if entry.seconds < _SMALL_S * entry.count:
        return _advice(run, "operators")
    assert program.timing is not None
    kernels = [
        each
        for each in program.timing.kernels
        if each.phase == phase and name in dict(each.operators)
    ]
    longest = max(kernels, key=lambda each: each.seconds)
    places = [longest.line, longest.module.replace("/", ".")]
    where = ", ".join(place for place in places if place)
    long = f"The longest takes {words.seconds(longest.seconds)}, computed by {longest.what}"
    return f"{long}: {where}." if where else f"{long}."


def _of_memory(run: Run) -> Iterator[Insight]:
    for program in run.programs if run.training else ():
        use = program.memory
        # Where a peak lies in backward, what forward made waits there for it.
        backward = use.phases.get("backward")
        if backward is None or use.peak_step < backward:
            continue
        waiting = use.waiting
        if waiting >= max(_LEAST_BYTES, _ACTIVATIONS * use.peak):
            yield Insight(
                what=f"{words.size(waiting)} of the peak of {program.name} are activations that "
                "wait for backward.",
                advice=_advice(run, "activations"),
                bytes=waiting,
            )
