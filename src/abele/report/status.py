"""Determines the state of a run, such as running or failed, from its record and journal."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from typing import Any

from abele.report.journal import Journal, Moment, Window, joined, quarters_of
from abele.report.record import Program, Run, Timing


class State(enum.StrEnum):
    """States and ends of a run."""

    RUNNING = "is running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "was interrupted"
    KILLED = "was killed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """State or end of a run, with a description.

    Attributes:
        error: the last error, if it ended the run or the run goes on after it.
    """

    state: State
    sentence: str
    error: Moment | None = None


# What an error is about, by a part of its type or text, in small letters.
_KINDS = (
    ("out of memory", ("memoryerror", "allocate memory", "out of memory", "not enough memory")),
    ("the disk is full", ("no space left on device", "disk quota exceeded")),
    ("another instance is gone", ("ranklosterror", "unrecoverableerror", "connection closed by")),
    ("the compiler failed", ("compilererror", "compiler failed")),
    ("a number is infinite or NaN", ("trappederror", "recoverableerror")),
    ("it was interrupted by the keyboard", ("keyboardinterrupt",)),
)
# What a worker of torch's loader hands over: the error's type, then its traceback as text.
_OF_WORKER = re.compile(r"^Caught \w+ in DataLoader worker process \d+\.\n")
_LONGEST = 200  # characters of an error's text in a sentence
_PREFIX = re.compile(r"^'\w+': ")  # the category, in errors of the PopTorch interface
_FRAME = re.compile(r'^ *File "(?:.*[/\\])?([^"/\\]+)", line (\d+), in (\S+)', re.MULTILINE)


def status_of(journal: Journal, alive: bool | None) -> Status:
    """Determine the state of a run from its journal.

    Args:
        journal: the run's journal.
        alive: whether the run's process is alive; None if unknown.
    """
    errors = journal.of_kind("error")
    last = errors[-1] if errors else None
    end = journal.end
    if end is None and alive:
        when = f"when this was written{_after(journal)}"
        said = f"It was running {when}; abele report says how it went on."
        return Status(state=State.RUNNING, sentence=said)
    if end is None:
        return Status(state=State.KILLED, sentence=_killed(journal, alive), error=last)
    if end.what == "finished" or end.what.startswith("ended:"):
        said = "" if end.what == "finished" else f"It {end.what.replace(':', ' because', 1)}."
        return Status(state=State.FINISHED, sentence=said)
    if end.what.startswith("ended with"):
        return Status(state=State.FAILED, sentence=f"It {_beginning(end.what)}.")
    if end.what.startswith("ended by"):
        if last is not None and all(each.until <= last.at for each in journal.windows):
            # An instance that fails is stopped by its launcher before it has ended by itself.
            said = f"{about(last)} Then it was {end.what}."
            return Status(state=State.FAILED, sentence=said, error=last)
        return Status(
            state=State.INTERRUPTED,
            sentence=f"It was {end.what}: somebody, or a scheduler, asked it to stop.",
        )
    state = State.INTERRUPTED if end.what == "interrupted" else State.FAILED
    return Status(state=state, sentence="" if last is None else about(last), error=last)


def about(error: Moment) -> str:
    """Describe the kind and place of an error in a sentence."""
    text = f"{error.type}: {error.what}".lower()
    kinds = [words for words, signs in _KINDS if any(sign in text for sign in signs)]
    place = f" in {error.where}" if error.where else ""
    if kinds:
        said = kinds[0][0].upper() + kinds[0][1:]
        return f"{said},{place}." if place else f"{said}."
    if _OF_WORKER.match(error.what) and (frames := _FRAME.findall(error.what)):
        file, line, function = frames[-1]
        raised = error.what.rstrip().rpartition("\n")[2]
        return f"A worker of the loader raised “{raised}”, in {file}:{line} in {function}."
    name = error.type or "error"
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    return f"It ended with {article} {name}{place}: {_beginning(error.what)}."


def _beginning(text: str) -> str:
    """Return the first sentence of an error's text without a leading number or name."""
    first = _PREFIX.sub("", text.strip()).partition("\n")[0].partition(". ")[0].removesuffix(".")
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"


def _killed(journal: Journal, alive: bool | None) -> str:
    doing = journal.of_kind("stage")
    during = f" Its last stage was “{doing[-1].what}”." if doing else ""
    sure = "" if alive is False else " (Nobody here can see whether its process still runs.)"
    return (
        f"Its journal ends{_after(journal)}, without a word, as when a process is killed (SIGKILL, "
        f"the kernel when memory ran out) or the machine stops.{during}{sure}"
    )


def _after(journal: Journal) -> str:
    """Format the time of the journal's last entry."""
    moments = [each.at for each in journal.moments] + [each.until for each in journal.windows]
    return f", {max(moments):.1f} s after it began" if moments else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steady(Window):
    """Averages over a run's calls without the slower first ones, in seconds per call.

    Attributes:
        waits: quartiles of the seconds before a call.
        loads: quartiles of the seconds of loading a batch before a call.
    """

    waits: tuple[float, float, float]
    loads: tuple[float, float, float]


def steady(journal: Journal) -> Steady | None:
    """Average a run's calls without the first tenth, at most 32; None without calls."""
    skip = min(32, max(1, journal.calls // 10)) if journal.calls > 1 else 0
    windows = [each for each in journal.windows if each.first >= skip]
    if not windows:
        return None
    total = joined(windows)
    names = ("waited", "inputs", "computed", "outputs", "loading", "compiling")
    means = {name: getattr(total, name) / total.count for name in names}
    low, *_, high = total.quarters
    # Quartiles of single calls where each has a line, else of their lines, by their weight.
    middle = _quartiles([e for window in windows for e in window.quarters[1:4] * window.count])
    waits = [each.waited / each.count for each in windows for _ in range(each.count)]
    loads = [each.loading / each.count for each in windows for _ in range(each.count)]
    quarters = low, *middle, high
    fields: dict[str, Any] = vars(total) | means | {"quarters": quarters}
    return Steady(**fields, waits=_quartiles(waits), loads=_quartiles(loads))


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the quartiles of a list; a list of very many values is subsampled."""
    return quarters_of(values[:: 1 + len(values) // 100_000])[1:4]


#: Runs for timing that took so many times as long as calls did say little of calls.
DISTURBED = 2.0


@dataclasses.dataclass
class Entry:
    """Summed times of the kernels that compute one operator in one phase.

    Attributes:
        seconds: seconds of all kernels; shared among the operators of a kernel that has several.
        least: least seconds of the machine for this work.
        count: number of kernels.
        by: backends.
    """

    seconds: float = 0.0
    least: float = 0.0
    count: int = 0
    by: dict[str, None] = dataclasses.field(default_factory=dict[str, None])


def by_operator(timing: Timing) -> list[tuple[tuple[str, str], Entry]]:
    """Sum kernel times by phase and operator, the longest first."""
    entries: dict[tuple[str, str], Entry] = {}
    for kernel in timing.kernels:
        for name, share in kernel.operators:
            entry = entries.setdefault((kernel.phase, name), Entry())
            entry.seconds += share * kernel.seconds
            entry.least += share * min(kernel.least, kernel.seconds)
            entry.count += 1
            entry.by[kernel.what] = None
    return sorted(entries.items(), key=lambda item: -item[1].seconds)


def runs_in_call(run: Run, program: Program) -> int:
    """Return how often a call of the model runs a program."""
    names = ["device_iterations"]
    if program.name != "apply":
        names += ["gradient_accumulation", "replicas"]
    return math.prod(run.configuration.get(name, 1) for name in names)


def slower(run: Run, journal: Journal) -> float:
    """Return how many times as long as calls the timed program runs took.

    Returns 0 without calls or timed runs. Concurrent stages of a pipeline are accounted for.
    """
    later = steady(journal)
    if later is None or not run.programs or any(each.timing is None for each in run.programs):
        return 0.0
    whole = sum(
        runs_in_call(run, each) * each.timing.seconds for each in run.programs if each.timing
    )
    at_once = 1 if run.pipeline is None else max(1, len(run.pipeline.stages))
    return whole / at_once / later.quarters[2] if later.quarters[2] else 0.0
