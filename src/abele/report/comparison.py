"""Comparison of two recorded runs, as text and as a page; nothing is run for it."""

from __future__ import annotations

import dataclasses
import datetime
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abele.errors import DifferenceError
from abele.report import executable_file, loss_differences, run_differences, words
from abele.report.journal import FILE as JOURNAL
from abele.report.journal import read_journal
from abele.report.loss_differences import Losses, Pair
from abele.report.page import document
from abele.report.page.markup import Content, Html, html, long_table, section, table, tag
from abele.report.page.overview import micro_batches, per_call
from abele.report.record import FILE, Run, read_run
from abele.report.run_differences import (
    Difference,
    Files,
    Operation,
    ProgramDifference,
    differences,
)
from abele.report.status import status_of, steady

_ROWS = 8  # of a list in the text
_MOST_ROWS = 12  # of a table on the page at first
_DIGITS = 12  # of a fingerprint
_ALWAYS_DIFFER = ("began", "half of all take")
_Folders = tuple[Path, Path]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Differences between two recorded runs.

    Attributes:
        names: folders of the runs.
        optimizer: class and values that differ, with the first update that has them.
        options: options that differ, with how a call consumes its batch.
        only: names of programs that only one run has.
        programs: programs of both runs that differ.
        operators: operators that programs call a different number of times.
        kernels: lowerings and backends of operators that differ.
        machine: target, versions, processor and threads that differ.
        time: times of calls that differ.
        memory: state and peak memory that differ.
        losses: first and largest difference of the losses.
        reasons: possible reasons, in sentences, if nothing recorded differs but losses do.
        notes: sentences on what could not be compared.
    """

    names: tuple[str, str]
    programs: tuple[ProgramDifference, ...]
    losses: Losses
    optimizer: tuple[Difference, ...] = ()
    options: tuple[Difference, ...] = ()
    only: tuple[Difference, ...] = ()
    operators: tuple[Difference, ...] = ()
    kernels: tuple[Difference, ...] = ()
    machine: tuple[Difference, ...] = ()
    time: tuple[Difference, ...] = ()
    memory: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def recorded(self) -> bool:
        """True if something differs that can change losses."""
        differing = (self.optimizer, self.options, self.programs, self.only, self.kernels)
        return any(differing) or bool(self.machine)

    @property
    def status(self) -> int:
        """Exit status of ``abele diff``: 0 if results and settings are equal, else 1."""
        calls = self.losses.updates[0] != self.losses.updates[1]
        return int(self.recorded or calls or bool(self.losses.parted))

    @property
    def alike(self) -> bool:
        """True if nothing differs, including time and memory."""
        measured = (self.time, self.memory, self.operators)
        return not (self.recorded or any(measured) or self.losses.parted)

    def data(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return _text(self)


def why_runs_differ(first: Path, second: Path) -> Comparison:
    """Compare two recorded runs.

    Args:
        first: folder of a run, or its ``run.json``.
        second: folder or ``run.json`` of another run.

    Raises:
        DifferenceError: both are the same run.
        ReportError: there is no run, its record is damaged, or a newer version wrote it.
    """
    a, b = read_run(first), read_run(second)
    folders = folder_of(first), folder_of(second)
    if folders[0].resolve() == folders[1].resolve():
        raise DifferenceError(
            f"{first} and {second} are the same run. Give two runs: each needs a folder of its "
            "own, such as options.enableProfiling(FOLDER) with another FOLDER for each."
        )
    journals = read_journal(folders[0]), read_journal(folders[1])
    made = compare((a, journals[0]), (b, journals[1]), folders)
    return dataclasses.replace(made, names=(str(first), str(second)))


def folder_of(path: Path) -> Path:
    """Return the folder of a run, given the folder or its ``run.json``."""
    return path if path.is_dir() else path.parent


def compare(first: Files, second: Files, folders: _Folders) -> Comparison:
    """Compare two runs by their records, journals and the executables in their folders."""
    runs = first[0], second[0]
    by_kind: defaultdict[str, list[Difference]] = defaultdict(list)
    for each in differences(first, second):
        by_kind[each.kind].append(each)
    fields: dict[str, Any] = {kind: tuple(each) for kind, each in by_kind.items()}
    made = Comparison(
        names=(str(folders[0]), str(folders[1])),
        programs=tuple(run_differences.of_runs(runs, folders)),
        losses=loss_differences.compare(first, second),
        notes=tuple(_notes(folders, runs)),
        **fields,
    )
    if made.losses.parted and not made.programs:
        notes = (*made.notes, *loss_differences.next_command(runs))
        made = dataclasses.replace(made, notes=notes)
    if made.recorded or made.losses.first is None:
        return made
    reasons = tuple(loss_differences.reasons(made.losses, first[0]))
    return dataclasses.replace(made, reasons=reasons)


def _notes(folders: _Folders, runs: tuple[Run, Run]) -> Iterator[str]:
    for folder, run in zip(folders, runs, strict=True):
        if not (folder / JOURNAL).is_file():
            yield f"{folder} has no {JOURNAL}, so its losses are not known."
        if run.programs and not run_differences.fingerprints(folder):
            yield (
                f"{folder} has no {executable_file.FILE} that can be read, so programs are "
                "compared by their texts alone, without the values of constants."
            )
        if run.build is None:
            yield f"{folder / FILE} was written before anything was compiled."


# -- text -------------------------------------------------------------------------------------

#: Titles of the lists of differences, in the order of the page.
_TITLES = {
    "optimizer": "Optimizer",
    "options": "Options",
    "only": "Programs of one run only",
    "machine": "Target and versions",
    "time": "Time",
    "memory": "Memory",
    "kernels": "Kernels",
    "operators": "How often operators are called",
}


def _text(made: Comparison) -> str:
    first, second = made.names
    parts = [
        f"{first} and {second} {'differ' if made.status else 'are the same'}.",
        *_listed(made, "optimizer"),
        *_listed(made, "options"),
        *_programs(made),
        *_listed(made, "kernels"),
        *_listed(made, "machine"),
        *_losses(made.losses),
    ]
    if made.reasons:
        parts += ["Nothing that the records have differs, but losses do. What may be why:"]
        parts += [f"  {each}" for each in made.reasons]
    return "\n".join([*parts, *(f"Note: {note}" for note in made.notes)])


def _listed(made: Comparison, kind: str) -> Iterator[str]:
    differing = getattr(made, kind)
    if not differing:
        yield f"{_TITLES[kind]}: no difference."
        return
    yield f"{_TITLES[kind]}: {words.count(len(differing), 'difference')}."
    yield from _rows(f"  {each.what}: {each.first} and {each.second}" for each in differing)


def _rows(lines: Iterator[str]) -> Iterator[str]:
    """Yield the first rows of a list, and the number of those left out."""
    rows = list(lines)
    yield from rows[:_ROWS]
    if len(rows) > _ROWS:
        indent = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
        yield f"{indent}... and {len(rows) - _ROWS} more"


def _programs(made: Comparison) -> Iterator[str]:
    if not made.programs and not made.only:
        yield "Programs: no difference."
        return
    for each in made.only:
        yield f"Programs: {each.first} and {each.second}."
    for each in made.programs:
        yield from _program(each)
    if made.operators:
        yield f"  {_TITLES['operators']}:"
        yield from _rows(f"    {e.what}: {e.first} and {e.second}" for e in made.operators)


def _program(program: ProgramDifference) -> Iterator[str]:
    prints = [each[:_DIGITS] for each in program.fingerprints if each]
    said = f", fingerprints {prints[0]} and {prints[1]}" if len(prints) == 2 else ""
    yield f"Programs: {program.name} differs{said}.{_made_by(program.by)}"
    yield from _rows(
        f"  {name}: {first or 'not there'} and {second or 'not there'}"
        for name, first, second in program.slots
    )
    first, second = program.operations
    if first or second:
        yield "  The first operation that differs:"
        yield f"    first: {_operation(first)}"
        yield f"    second: {_operation(second)}"
    elif program.constants:
        yield f"  Its operations are the same. Values of constants: {', '.join(program.constants)}."
    elif not program.slots:
        yield "  Its operations are the same as far as the records keep their text."


def _made_by(by: str) -> str:
    if by == "capture":
        return " They differ as captured: by the model, its loss, optimizer, inputs or options."
    return f" Both were captured alike; {by} made them differ." if by else ""


def _operation(made: Operation | None) -> str:
    if made is None:
        return "none: the program ends before it"
    where = [made.phase and f"in {made.phase}", made.line]
    return ", ".join([made.text, *filter(None, where)])


def _losses(losses: Losses) -> Iterator[str]:
    if losses.updates[0] != losses.updates[1]:
        noun = "Updates" if losses.training else "Batches"
        yield f"{noun}: {losses.updates[0]} and {losses.updates[1]}."
    if not losses.compared:
        yield f"Losses: nothing to compare, {_missing(losses)}."
        return
    if losses.first is None:
        yield f"Losses: the same bit for bit, all {losses.compared} that both records have."
    else:
        yield f"Losses: they diverge at {_pair(losses.first)}.{_before(losses, losses.first)}"
        yield f"  {_largest(losses)}"
    pair = losses.not_finite
    if pair is not None:
        place = "from" if losses.stays else "at"
        yield f"  Both are not finite {place} update {pair.update}: {pair.instead[0]}."
    calls = [made // each for made, each in zip(losses.updates, losses.a_call, strict=True)]
    if losses.compared < min(calls):
        yield (
            f"  Of {calls[0]} and {calls[1]} calls, {losses.compared} have a loss in both records; "
            "the others are not compared."
        )


def _missing(losses: Losses) -> str:
    without = [not each for each in losses.known]
    if all(without):
        return "neither record has losses"
    if any(without):
        return f"the {'first' if without[0] else 'second'} record has no losses"
    return "the records have no loss of the same update"


def _before(losses: Losses, first: Pair) -> str:
    if losses.before + max(losses.a_call) < first.update:
        since = f"update {losses.before}" if losses.before else "the beginning"
        return f" Since {since} records have no loss of the same update, so it may be before that."
    if not losses.before:
        return ""
    return f" Those up to update {losses.before} are the same bit for bit."


def _largest(losses: Losses) -> str:
    assert losses.first is not None
    said = f"From there {losses.parted} of {losses.compared} differ"
    if losses.largest is None:
        return f"{said}, and none of these is finite in both runs."
    return (
        f"{said}, by at most {losses.largest.distance:.1e} of the larger, at "
        f"{_pair(losses.largest)}."
    )


def _pair(pair: Pair) -> str:
    values = [
        instead or "one that is not finite" if each is None else repr(each)
        for each, instead in zip((pair.first, pair.second), pair.instead, strict=True)
    ]
    return f"update {pair.update}: {values[0]} and {values[1]}"


# -- page -------------------------------------------------------------------------------------


def page(first: Files, second: Files, folders: _Folders) -> str:
    """Return an HTML page that compares two runs."""
    made = compare(first, second, folders)
    timed = steady(first[1]) is not None and steady(second[1]) is not None
    runs = first[0], second[0]
    names = [run.name for run in runs]
    title = f"Two runs of {names[0]}" if names[0] == names[1] else f"{names[0]} and {names[1]}"
    head = html(tag("h1", title), _verdict(made, runs, timed=timed))
    notes = (*made.reasons, *made.notes)
    parts: list[Content] = [
        section("Both runs", _side_by_side(first, second), name="runs"),
        None if made.alike else section("Differences", list(_groups(made)), name="differences"),
        [tag("p", each, class_="soft") for each in notes],
    ]
    return document("Comparison of two runs", html(head, parts))


def _verdict(made: Comparison, runs: tuple[Run, Run], *, timed: bool) -> Html:
    if made.alike:
        return tag("p", "No difference was found.", class_="lead")
    work = [per_call(each.configuration) for each in runs]
    more = f" A call of the first does {work[0]}, of the second {work[1]}: compare micro-batches."
    more = "" if work[0] == work[1] else more
    optimizer = "".join(
        f"Of the optimizer, {each.what}: {each.first} and {each.second}. "
        for each in made.optimizer[:1]
    )
    count = sum(len(getattr(made, kind)) for kind in _TITLES) or len(made.programs)
    said = f"{words.count(count, 'difference')}. {optimizer}" if count else "Losses differ. "
    longer = next((each for each in made.time if each.change is not None), None)
    if longer is None or longer.change is None:
        equal = "Times of calls are the same within their spread." if timed else ""
        return tag("p", said, more or equal, class_="lead")
    text = f"{longer.what}: {longer.first} and {longer.second}, {_how_much(longer.change)}."
    if _same_code(made, runs):
        said = (
            f"{optimizer}No difference between the programs: the same executable "
            "ran. Its times differ, so the machine was slower for one of them, or the loop around "
            "the calls was. "
        )
        return tag("p", said, text[0].upper() + text[1:], class_="lead")
    kind = "worse" if longer.change > 0 else "better"
    return tag("p", said, tag("b", text, class_=kind), more, class_="lead")


def _same_code(made: Comparison, runs: tuple[Run, Run]) -> bool:
    """Return whether both ran the same executable, so that only times can differ."""
    keys = {each.build.executable for each in runs if each.build is not None}
    settings = (made.options, made.only, made.machine, made.memory, made.kernels, made.operators)
    return len(keys) == 1 and not any(settings)


def _how_much(change: float) -> str:
    """Format a change of time in per cent, or as a factor if it is large."""
    if change > 1:
        return f"{1 + change:,.1f} times as long"
    if change < -0.5:
        return f"{1 / (1 + change):,.1f} times as fast" if change > -1 else "shorter"
    return f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'}"


def _side_by_side(first: Files, second: Files) -> Html:
    """Return a table of both runs, with values that differ in bold."""
    one, other = columns = _known(first), _known(second)
    rows: list[list[Content]] = []
    for name in one | other:
        kind = "span" if one.get(name) == other.get(name) or name in _ALWAYS_DIFFER else "b"
        rows.append([name, *(tag(kind, each.get(name, ""), class_="value") for each in columns)])
    note = "What differs is bold; below is which of it is more than chance."
    return html(tag("p", note, class_="soft"), table(("", "first", "second"), rows))


def _known(files: Files) -> dict[str, str]:
    run, journal = files
    began = datetime.datetime.fromtimestamp(run.process.began, datetime.UTC)
    known = {
        "name": run.name,
        "began": f"{began:%Y-%m-%d %H:%M:%S} UTC",
        "how it went": status_of(journal, alive=None).state.value,
        "calls": f"{journal.calls:,}",
        "a call does": per_call(run.configuration),
    }
    calls = steady(journal)
    if calls is not None:
        low, middle, high = map(words.seconds, calls.quarters[1:4])
        known["a call takes (median)"] = middle
        known["half of all take"] = f"{low} to {high}"
        known["a micro-batch takes (median)"] = words.seconds(
            calls.quarters[2] / micro_batches(run.configuration)
        )
    losses = [each.loss for each in journal.windows if each.loss is not None]
    if losses:
        known["loss, first and last"] = f"{words.number(losses[0])}, {words.number(losses[-1])}"
    if run.build is not None:
        known["target"] = run.build.target
        known["programs"] = ", ".join(f"{each.name}: {each.lowering}" for each in run.programs)
        known["executable"] = run.build.executable[:16]
    if run.programs:
        known["state"] = words.size(sum(run.state.values()))
        known["memory beside, at most"] = words.size(max(e.memory.peak for e in run.programs))
    return known


def _groups(made: Comparison) -> Iterator[Content]:
    for kind, title in _TITLES.items():
        group = getattr(made, kind)
        if group:
            yield [tag("h3", title), _table(group)]
    for title, lines in (
        ("Programs", [line for each in made.programs for line in _program(each)]),
        ("Losses", list(_losses(made.losses)) if made.losses.parted else []),
    ):
        if lines:
            yield [tag("h3", title), tag("pre", "\n".join(lines))]


def _table(differing: tuple[Difference, ...]) -> Html:
    numbered = any(each.change is not None for each in differing)
    rows: list[list[Content]] = [
        [
            *(tag("span", said, class_="value") for said in (each.what, each.first, each.second)),
            *([_change(each)] if numbered else []),
        ]
        for each in differing
    ]
    heads = ("what", "first", "second", "change")
    return long_table(heads if numbered else heads[:3], rows, numbers=(3,), most=_MOST_ROWS)


def _change(each: Difference) -> str:
    """Format a change as a percentage, or as a factor if it is large."""
    if each.change is None:
        return ""
    return f"{each.change:+.1%}" if each.change < 10 else f"{1 + each.change:,.0f} times"
