"""State of a run, from its two files."""

from __future__ import annotations

import dataclasses
import enum
import re
import statistics

from abele.report.journal import Journal, Moment, Window, joined


class State(enum.StrEnum):
    """State or end of a run."""

    RUNNING = "is running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "was interrupted"
    KILLED = "was killed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """State or end of a run.

    Attributes:
        state: the state.
        sentence: description.
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
    """Return the state of a run.

    Args:
        journal: its journal.
        alive: its process is alive; None if unknown.
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
    """Describe the subject and location of an error in a sentence."""
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
    """Format the time of the last write to the journal."""
    moments = [each.at for each in journal.moments] + [each.until for each in journal.windows]
    return f", {max(moments):.1f} s after it began" if moments else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steady:
    """Calls after the first ones, which take longer.

    Attributes:
        count: number of calls.
        quarters: shortest, quartiles and longest, in seconds.
        whole: seconds from call to call, waiting included, on average.
        waited: seconds of that before a call, on average.
        waits: quartiles of that.
        loading: seconds of that until a batch was there; 0 where nobody could tell.
        loads: quartiles of that.
        inputs: for inputs, and what is left to a process that compiles.
        compiling: seconds of that for the latter.
        computed: in micro-steps.
        outputs: for outputs.
    """

    count: int
    quarters: tuple[float, float, float, float, float]
    whole: float
    waited: float
    waits: tuple[float, float, float]
    inputs: float
    computed: float
    outputs: float
    loading: float = 0.0
    loads: tuple[float, float, float] = (0.0, 0.0, 0.0)
    compiling: float = 0.0

    @property
    def handed(self) -> float:
        """Seconds in which inputs were handed over, on average."""
        return max(0.0, self.inputs - self.compiling)

    @property
    def other(self) -> float:
        """Seconds before a call in which no batch was waited for, on average."""
        return max(0.0, self.waited - self.loading)

    @property
    def in_calls(self) -> float:
        """Seconds in a call, on average."""
        return self.inputs + self.computed + self.outputs


def steady(journal: Journal) -> Steady | None:
    """Return the later calls, without the first tenth or at most 32; None without calls."""
    skip = min(32, max(1, journal.calls // 10)) if journal.calls > 1 else 0
    windows = [each for each in journal.windows if each.first >= skip]
    if not windows:
        return None
    total = joined(windows)
    names = ("waited", "inputs", "computed", "outputs")
    parts = {name: getattr(total, name) / total.count for name in names}
    return Steady(
        count=total.count,
        quarters=_quarters(windows),
        whole=sum(parts.values()),
        waits=_of_many([each.waited / each.count for each in windows for _ in range(each.count)]),
        loading=total.loading / total.count,
        compiling=total.compiling / total.count,
        loads=_of_many([each.loading / each.count for each in windows for _ in range(each.count)]),
        **parts,
    )


def _quarters(windows: list[Window]) -> tuple[float, float, float, float, float]:
    """Quartiles of single calls where each has a line, else of their lines, by their weight."""
    singles = [each for window in windows for each in window.quarters[1:4] * window.count]
    first, middle, third = _of_many(singles)
    lowest = min(each.quarters[0] for each in windows)
    return lowest, first, middle, third, max(each.quarters[4] for each in windows)


def _of_many(values: list[float]) -> tuple[float, float, float]:
    """Quartiles; of very many values of evenly chosen ones."""
    if len(values) > 200_000:
        values = values[:: len(values) // 100_000]
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, middle, third
