"""Finds differences between two recorded runs: settings, machine, time, memory, programs, losses.

Times differ if their quartiles do not overlap and their medians differ by more than ``LEAST``.
Two runs of one program therefore show no difference, unless something slowed one of them down.

A program's text numbers its values, so the first operation that differs is on the first line that
differs. Comments give the line of the user's source and do not count.

A journal has the loss of each of the first calls, later one every quarter of a second. Only losses
of the same update are compared, bit for bit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from abele.report import words
from abele.report.journal import Journal
from abele.report.optimizer import Optimizer
from abele.report.record import Program, Run
from abele.report.status import Steady, steady

LEAST = 0.03

#: The record and the journal of a run.
Files = tuple[Run, Journal]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A named value that differs between two runs.

    Attributes:
        kind: name of a field of ``Comparison``.
        what: name of the value.
        first: value in the first run, formatted.
        second: value in the second run, formatted.
        change: relative increase in the second run; None if the value is not a number.
    """

    kind: str
    what: str
    first: str
    second: str
    change: float | None = None


def _numbers(
    kind: str, what: str, values: tuple[float, float], say: Callable[[float], str]
) -> Difference:
    """Return the difference between a number in two runs, with its relative change."""
    first, second = values
    change = (second - first) / first if first else None
    return Difference(kind=kind, what=what, first=say(first), second=say(second), change=change)


def differences(first: Files, second: Files) -> list[Difference]:
    """Return all differences between two runs: the optimizer's, then others by size."""
    (a, calls_a), (b, calls_b) = first, second
    differing = [
        *_time(steady(calls_a), steady(calls_b)),
        *_memory(a, b),
        *_kernels(a, b),
        *_machine(a, b),
        *_options(a, b),
    ]
    return [
        *of_optimizers(first, second),
        *sorted(differing, key=lambda each: -abs(each.change or 0)),
    ]


def _disjoint(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether two intervals (low, median, high) do not overlap."""
    return first[2] < second[0] or second[2] < first[0]


def _time(a: Steady | None, b: Steady | None) -> Iterator[Difference]:
    if a is None or b is None:
        return
    middles = a.quarters[2], b.quarters[2]
    distance = abs(middles[1] - middles[0])
    if _disjoint(a.quarters[1:4], b.quarters[1:4]) and distance > LEAST * middles[0]:
        yield _numbers("time", "a call (median)", middles, words.seconds)
    # Waiting before a call counts if it is a large part of the time from call to call.
    waits = [("before a call, such as for data (median)", a.waits, b.waits)]
    if a.loading and b.loading:
        waits.append(("waiting for a batch, before a call (median)", a.loads, b.loads))
    whole = max(a.whole, b.whole)
    for what, one, other in waits:
        if _disjoint(one, other) and abs(other[1] - one[1]) > LEAST * whole:
            yield _numbers("time", what, (one[1], other[1]), words.seconds)


def _memory(a: Run, b: Run) -> Iterator[Difference]:
    sizes = [
        (role.replace("_", " "), a.state[role], b.state[role])
        for role in a.state
        if role in b.state
    ]
    for name, (one, other) in programs_of_both(a, b).items():
        sizes.append((f"peak of {name}", one.memory.peak, other.memory.peak))
    for what, first, second in sizes:
        if first != second:
            yield _numbers("memory", what, (first, second), words.size)


def _machine(a: Run, b: Run) -> Iterator[Difference]:
    names = [", ".join(each.name for each in run.programs) or "none" for run in (a, b)]
    if names[0] != names[1]:
        yield Difference(kind="only", what="names", first=names[0], second=names[1])
    for what, one, other in (
        ("target", a.build and a.build.target, b.build and b.build.target),
        ("what runs", a.build and a.build.running, b.build and b.build.running),
        ("fallback", a.build and a.build.fallback, b.build and b.build.fallback),
        ("threads", a.machine.threads, b.machine.threads),
        ("processor", a.machine.processor, b.machine.processor),
        ("torch", a.machine.torch, b.machine.torch),
        ("abele", a.abele, b.abele),
        ("python", a.machine.python, b.machine.python),
        ("system", a.machine.system, b.machine.system),
    ):
        if one != other:
            yield Difference(kind="machine", what=what, first=_say(one), second=_say(other))


def _options(a: Run, b: Run) -> Iterator[Difference]:
    if a.training != b.training:
        said = ["trains" if each.training else "does not train" for each in (a, b)]
        yield Difference(kind="options", what="training", first=said[0], second=said[1])
    first, second = (
        {each.name: each.value for each in run.options}
        | {key: str(value) for key, value in run.configuration.items()}
        for run in (a, b)
    )
    for name in {**first, **second}:
        values = first.get(name), second.get(name)
        pairs = zip(values, (a, b), strict=True)
        is_name = all(value in (repr(run.name), None) for value, run in pairs)
        if values[0] != values[1] and not is_name:
            said = [_say(value) for value in values]
            yield Difference(kind="options", what=name, first=said[0], second=said[1])


def _say(value: object) -> str:
    return "not set" if value is None else str(value)


# -- optimizer --------------------------------------------------------------------------------


def of_optimizers(first: Files, second: Files) -> list[Difference]:
    """Return the differences between the optimizers of two runs, learning rates first.

    Class, groups and hyperparameters are compared, up to the last update of the shorter run. The
    list is empty if a record has no optimizer.
    """
    one, other = first[0].optimizer, second[0].optimizer
    if one is None or other is None:
        return []
    differing = [*_of_classes(one, other)]
    if len(one.groups) != len(other.groups):
        counts = (str(len(each.groups)) for each in (one, other))
        return [*differing, _of_optimizer("groups of parameters", *counts)]
    updates = [_Updates(*files) for files in (first, second)]
    names = {**one.begins_with(), **one.latest(), **other.begins_with(), **other.latest()}
    for name in sorted(names, key=lambda each: not each.endswith(".lr")):
        differing += _of_value(_value_name(name, one), updates[0], updates[1], name)
    return differing


def _of_classes(one: Optimizer, other: Optimizer) -> Iterator[Difference]:
    if one.name != other.name:
        yield _of_optimizer("class", one.name, other.name)
    for index, (a, b) in enumerate(zip(one.groups, other.groups, strict=False)):
        if a.parameters != b.parameters:
            name = _value_name(f"group{index}.tensors", one)
            yield _of_optimizer(name, f"{a.parameters:,}", f"{b.parameters:,}")


def _of_optimizer(what: str, first: str, second: str) -> Difference:
    return Difference(kind="optimizer", what=what, first=first, second=second)


def _value_name(name: str, optimizer: Optimizer) -> str:
    """Format an optimizer value's name as ``lr of group 1``, or ``lr`` with a single group."""
    group, _, value = name.rpartition(".")
    if len(optimizer.groups) < 2 or not group:
        return value
    return f"{value} of group {group.removeprefix('group')}"


class _Updates:
    """The optimizer's hyperparameters of a run, by number of updates."""

    def __init__(self, run: Run, journal: Journal):
        self._optimizer, self._journal = run.optimizer, journal
        self._a_call = run.configuration.get("device_iterations", 1)

    def values(self, name: str) -> dict[int, float]:
        """Return each value of a hyperparameter by the number of updates before it was set."""
        assert self._optimizer is not None
        return {calls * self._a_call: value for calls, value in self._optimizer.history(name)}

    def known(self) -> float:
        """Return the number of updates for which all hyperparameters are known."""
        assert self._optimizer is not None
        return min(self._journal.calls, self._optimizer.known_calls()) * self._a_call


def _of_value(what: str, one: _Updates, other: _Updates, name: str) -> Iterator[Difference]:
    """Yield the first difference between an optimizer's hyperparameter in two runs, if any."""
    first, second = one.values(name), other.values(name)
    if not (0 in first and 0 in second):
        if first.get(0) != second.get(0):
            yield _of_optimizer(what, *(str(each.get(0, "not there")) for each in (first, second)))
        return
    a = b = math.nan
    for made in sorted(first.keys() | second.keys()):
        a, b = first.get(made, a), second.get(made, b)
        if made and made >= min(one.known(), other.known()):
            return
        if a != b:
            since = f", from update {made + 1}" if made else ""
            say = words.setting if words.setting(a) != words.setting(b) else repr
            yield _numbers("optimizer", f"{what}{since}", (a, b), say)
            return


# -- kernels ----------------------------------------------------------------------------------


def programs_of_both(first: Run, second: Run) -> dict[str, tuple[Program, Program]]:
    """Return the programs that two runs have in common, by name."""
    others = {each.name: each for each in second.programs}
    return {each.name: (each, others[each.name]) for each in first.programs if each.name in others}


def _kernels(first: Run, second: Run) -> Iterator[Difference]:
    """Yield differences in lowerings, backends and operator counts of common programs."""
    for name, (one, other) in programs_of_both(first, second).items():
        if one.lowering == other.lowering:
            yield from _backends(name, one, other)
        else:
            what = f"lowering of {name}"
            yield Difference(kind="kernels", what=what, first=one.lowering, second=other.lowering)
        before, after = _counts(one), _counts(other)
        for operator in sorted(before.keys() | after.keys()):
            if before[operator] != after[operator]:
                counts = before[operator], after[operator]
                yield _numbers("operators", f"{operator} in {name}", counts, str)


def _backends(name: str, one: Program, other: Program) -> Iterator[Difference]:
    """Yield operators that different backends compute in two runs."""
    backends: list[defaultdict[tuple[str, str], set[str]]] = []
    for program in (one, other):
        backends.append(defaultdict(set))
        for each in program.choices:
            backends[-1][each.operator, each.phase].add(each.by)
    for operator, phase in sorted(backends[0].keys() & backends[1].keys()):
        first, second = (", ".join(sorted(each[operator, phase])) for each in backends)
        if first != second:
            what = f"{operator} in {phase} of {name}"
            yield Difference(kind="kernels", what=what, first=first, second=second)


def _counts(program: Program) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in program.operators:
        counts[each.name] += each.count
    return counts


_CUT = "# cut off here"
_BODY = "):"  # the line before a program's operations
_SLOT = re.compile(r" {4}(?P<name>\w+),  # (?P<kind>.*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation in the recorded text of a program.

    Attributes:
        text: ``v2 = aten.relu.default(v1)  # f32[4, 4]``.
        phase: ``forward``, ``backward`` or ``update``; empty outside these.
        line: the user's line, ``FILE:LINE in FUNCTION``; empty if unknown.
    """

    text: str
    phase: str
    line: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramDifference:
    """The difference between two programs of the same name.

    Attributes:
        slots: inputs and state whose type, shape or role differs, as (name, first, second); an
            empty string means that a program has none of that name.
        operations: the first differing operation of each; None if a program ends before it.
            Both are None if the texts are equal.
        by: the cause of the difference, ``capture`` or ``passes``; empty if unknown.
        constants: names of constants whose values differ.
        fingerprints: fingerprints of both; empty in older records.
    """

    name: str
    slots: tuple[tuple[str, str, str], ...] = ()
    operations: tuple[Operation | None, Operation | None] = (None, None)
    by: str = ""
    constants: tuple[str, ...] = ()
    fingerprints: tuple[str, str] = ("", "")


def _compare_texts(first: Program, second: Program) -> ProgramDifference:
    """Compare the recorded texts of two programs."""
    before, after = slots(first), slots(second)
    names = dict.fromkeys([*before, *after])
    return ProgramDifference(
        name=first.name,
        slots=tuple(
            (name, before.get(name, ""), after.get(name, ""))
            for name in names
            if before.get(name) != after.get(name)
        ),
        operations=_first_other(first, second),
        by=_maker(first, second),
    )


def slots(program: Program) -> dict[str, str]:
    """Return type, shape and role of a program's inputs and state, by name in its text."""
    lines = itertools.takewhile(lambda line: line != _BODY, _lines(program))
    matches = (_SLOT.fullmatch(line) for line in lines)
    return {match["name"]: match["kind"] for match in matches if match is not None}


def _first_other(first: Program, second: Program) -> tuple[Operation | None, Operation | None]:
    both = [list(_operations(each)) for each in (first, second)]
    cut = any(_is_cut(each) for each in (first, second))
    for one, other in zip(*both, strict=False) if cut else zip_longest(*both):
        if one is None or other is None or one.text != other.text:
            return one, other
    return None, None


def _operations(program: Program) -> Iterator[Operation]:
    """Yield the operations of a program's recorded text, without a truncated one."""
    phase = line = ""
    lines = itertools.dropwhile(lambda line: line != _BODY, _lines(program))
    for each in map(str.strip, lines):
        if each.startswith("# -- "):
            phase, line = each.removeprefix("# -- "), ""
        elif each.startswith("# "):
            line = each.removeprefix("# ")
        elif each not in ("", _BODY):
            yield Operation(text=each, phase="" if phase == "program" else phase, line=line)


def _lines(program: Program) -> list[str]:
    """Return the lines of a program's recorded text, without a truncated last line."""
    lines = program.text.splitlines()
    return lines[:-2] if _is_cut(program) else lines


def _is_cut(program: Program) -> bool:
    return program.text.endswith(_CUT)


def _maker(first: Program, second: Program) -> str:
    """Return whether ``capture`` or ``passes`` made two programs differ; empty if unknown."""
    if not (first.captured and second.captured):
        return ""
    return "capture" if first.captured != second.captured else "passes"


def of_programs(first: Run, second: Run) -> Iterator[ProgramDifference]:
    """Yield the programs that differ, by fingerprint if both records have it, else by text."""
    for one, other in programs_of_both(first, second).values():
        prints = one.fingerprint, other.fingerprint
        each = _compare_texts(one, other)
        if prints[0] != prints[1] if all(prints) else each.slots or any(each.operations):
            constants = tuple(
                name
                for name, value in one.constants.items()
                if other.constants.get(name, value) != value
            )
            yield dataclasses.replace(each, fingerprints=prints, constants=constants)


# -- losses -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """The losses of two runs after the same update.

    Attributes:
        update: number of the update, from 1; the last one of a call with several.
        first: loss of the first run, or ``nan``, ``inf`` or ``-inf`` as text.
        second: loss of the second run, in the same way.
    """

    update: int
    first: float | str
    second: float | str

    @property
    def distance(self) -> float | None:
        """Distance between two losses, relative to the larger; None unless both are finite."""
        if isinstance(self.first, str) or isinstance(self.second, str):
            return None
        largest = max(abs(self.first), abs(self.second))
        return abs(self.first - self.second) / largest if largest else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses:
    """The comparison of two runs' losses.

    Attributes:
        updates: number of updates of each run.
        compared: number of updates whose losses both records have.
        parted: number of compared updates whose losses differ.
        before: last update with equal losses before the first difference; 0 if there is none.
        first: first update whose losses differ; None if none does.
        largest: pair with the largest distance; None if no pair that differs is finite.
        not_finite: first update at which both losses are equal and not finite, or None.
        training: a run trains; otherwise batches are counted instead of updates.
    """

    updates: tuple[int, int]
    compared: int
    parted: int
    before: int
    first: Pair | None
    largest: Pair | None
    not_finite: Pair | None
    training: bool


def of_losses(first: Files, second: Files) -> Losses:
    """Compare the losses of two runs, update by update."""
    one, other = _losses(*first), _losses(*second)
    pairs = [
        Pair(update=update, first=one[update], second=other[update])
        for update in sorted(one.keys() & other.keys())
    ]
    differ = [each for each in pairs if each.first != each.second]
    same = [each for each in pairs if each.first == each.second]
    begin = differ[0].update if differ else math.inf
    finite = [each for each in differ if each.distance is not None]
    return Losses(
        updates=(_updates(*first), _updates(*second)),
        compared=len(pairs),
        parted=len(differ),
        before=max((each.update for each in same if each.update < begin), default=0),
        first=differ[0] if differ else None,
        largest=max(finite, key=lambda each: each.distance or 0.0, default=None),
        not_finite=next((each for each in same if isinstance(each.first, str)), None),
        training=first[0].training or second[0].training,
    )


def _updates(run: Run, journal: Journal) -> int:
    return journal.calls * run.configuration.get("device_iterations", 1)


def _losses(run: Run, journal: Journal) -> dict[int, float | str]:
    """Return the losses of a run by the number of updates made at the end of the call."""
    a_call = run.configuration.get("device_iterations", 1)
    return {
        (each.first + each.count) * a_call: each.instead if each.loss is None else each.loss
        for each in journal.windows
        if each.loss is not None or each.instead
    }
