"""Compares two recorded runs, as text and as an HTML page, without running anything."""

from __future__ import annotations

import dataclasses
import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from abele.errors import DifferenceError
from abele.report import run_differences, words
from abele.report.journal import FILE as JOURNAL
from abele.report.journal import read_journal
from abele.report.page import document
from abele.report.page.markup import Content, Html, html, section, table, tag
from abele.report.page.overview import micro_batches, per_call
from abele.report.record import FILE, Run, read_run
from abele.report.run_differences import (
    Difference,
    Files,
    Losses,
    Operation,
    Pair,
    ProgramDifference,
    differences,
)
from abele.report.status import status_of, steady

_ROWS = 8  # of a list in the text
_DIGITS = 12  # of a fingerprint
_ALWAYS_DIFFER = ("began", "half of all take")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Differences between two recorded runs.

    Attributes:
        names: folders of the runs.
        programs: programs of both runs that differ.
        losses: first and largest difference of the losses.
        optimizer: class and values that differ, with the first update that has them.
        options: options that differ, with how a call consumes its batch.
        only: names of programs that only one run has.
        operators: operators that programs call a different number of times.
        kernels: lowerings and backends of operators that differ.
        machine: target, versions, processor and threads that differ.
        time: times of calls that differ.
        memory: state and peak memory that differ.
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
        """True if a recorded difference between two runs can change losses."""
        differing = (self.optimizer, self.options, self.programs, self.only, self.kernels)
        return any(differing) or bool(self.machine)

    @property
    def status(self) -> int:
        """Exit status of ``abele diff``: 0 if results and settings are equal, else 1."""
        calls = self.losses.updates[0] != self.losses.updates[1]
        return int(self.recorded or calls or bool(self.losses.parted))

    def data(self) -> dict[str, Any]:
        """Return the fields of the comparison as JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return _text(self)


def why_runs_differ(first: Path, second: Path) -> Comparison:
    """Compare two recorded runs.

    Args:
        first: folder of a run, or its ``run.json``.
        second: folder or ``run.json`` of another run.

    Raises:
        DifferenceError: both folders are of the same run.
        ReportError: there is no run, its record is damaged, or a newer version wrote it.
    """
    made = compare(*read(first, second), (str(first), str(second)))
    missing = [each for each in (first, second) if not (folder_of(each) / JOURNAL).is_file()]
    notes = (f"{each} has no {JOURNAL}, so its losses are not known." for each in missing)
    return dataclasses.replace(made, notes=(*notes, *made.notes))


def read(first: Path, second: Path) -> tuple[Files, Files]:
    """Read the records and journals of two runs; see ``why_runs_differ`` for errors."""
    files = [(read_run(each), read_journal(folder_of(each))) for each in (first, second)]
    if folder_of(first).resolve() == folder_of(second).resolve():
        raise DifferenceError(
            f"{first} and {second} are the same run. Give two runs: each needs a folder of its "
            "own, such as options.enableProfiling(FOLDER) with another FOLDER for each."
        )
    return files[0], files[1]


def folder_of(path: Path) -> Path:
    """Return the folder of a run, given the folder or its ``run.json``."""
    return path if path.is_dir() else path.parent


def compare(first: Files, second: Files, names: tuple[str, str]) -> Comparison:
    """Compare two runs by their records and journals."""
    runs = first[0], second[0]
    by_kind: defaultdict[str, list[Difference]] = defaultdict(list)
    for each in differences(first, second):
        by_kind[each.kind].append(each)
    fields: dict[str, Any] = {kind: tuple(each) for kind, each in by_kind.items()}
    made = Comparison(
        names=names,
        programs=tuple(run_differences.of_programs(*runs)),
        losses=run_differences.of_losses(first, second),
        notes=tuple(
            f"The {FILE} of {name} was written before anything was compiled."
            for name, run in zip(names, runs, strict=True)
            if run.build is None
        ),
        **fields,
    )
    if made.recorded or made.losses.first is None:
        return made
    return dataclasses.replace(made, reasons=tuple(_reasons(runs[0])))


def _reasons(run: Run) -> Iterator[str]:
    """Yield reasons why losses may differ although the records of both runs are equal."""
    yield "Records do not have the data: samples, their order, or what is done to them on the host."
    seeds = [each for each in run.options if "seed" in each.name.lower()]
    if seeds:
        yield f"{seeds[0].name} is {seeds[0].value} in both."
    else:
        yield "No option has set a seed, and records do not have seeds that are set otherwise."
    if run.machine.threads > 1:
        yield (
            f"With {run.machine.threads} threads, libraries may add in another order each time. "
            "Compare two runs with one thread to rule that out."
        )


# -- text -------------------------------------------------------------------------------------

_TITLES = {
    "optimizer": "Optimizer",
    "options": "Options",
    "kernels": "Kernels",
    "machine": "Target and versions",
    "time": "Time",
    "memory": "Memory",
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
        *(_listed(made, "time") if made.time else ()),
        *(_listed(made, "memory") if made.memory else ()),
        *_losses(made.losses),
    ]
    if made.reasons:
        parts += ["Nothing that the records have differs, but losses do. What may be why:"]
        parts += [f"  {each}" for each in made.reasons]
    return "\n".join([*parts, *(f"Note: {note}" for note in made.notes)])


def _listed(made: Comparison, kind: str) -> Iterator[str]:
    differing: tuple[Difference, ...] = getattr(made, kind)
    if not differing:
        yield f"{_TITLES[kind]}: no difference."
        return
    yield f"{_TITLES[kind]}: {words.count(len(differing), 'difference')}."
    yield from _rows(f"  {each.what}: {each.first} and {each.second}" for each in differing)


def _rows(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first rows of a list, and the number of omitted rows."""
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
    return " Both were captured alike; passes of their lowerings made them differ." if by else ""


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
        yield "Losses: nothing to compare, no update has a loss in both records."
        return
    if losses.first is None:
        yield f"Losses: the same bit for bit, all {losses.compared} that both records have."
    else:
        before = losses.before and f" Those up to update {losses.before} are the same bit for bit."
        yield f"Losses: they diverge at {_pair(losses.first)}.{before or ''}"
        far = losses.largest
        by = "none of these is finite in both runs"
        if far is not None:
            by = f"by at most {far.distance:.1e} of the larger, at {_pair(far)}"
        yield f"  From there {losses.parted} of {losses.compared} differ, {by}."
    if losses.not_finite is not None:
        yield f"  Both are first not finite at {_pair(losses.not_finite)}."


def _pair(pair: Pair) -> str:
    return f"update {pair.update}: {pair.first} and {pair.second}"


# -- page -------------------------------------------------------------------------------------


def page(first: Files, second: Files, names: tuple[str, str]) -> str:
    """Return an HTML page with both runs side by side, and the text of their comparison."""
    made = compare(first, second, names)
    text = tag("pre", _text(made))
    content = html(
        tag("h1", f"{names[0]} and {names[1]}"),
        section("Both runs", _side_by_side(first, second), name="runs"),
        section("Differences", text, name="differences"),
    )
    return document("Comparison of two runs", content)


def _side_by_side(first: Files, second: Files) -> Html:
    """Return an HTML table of two runs, with values that differ in bold."""
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
