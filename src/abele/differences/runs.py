"""How two recorded runs differ: optimizer, options, programs, kernels, machine, and losses."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abele.differences import losses, reasons, run_programs
from abele.differences.answer import DIFFERENT, EQUAL
from abele.differences.losses import Losses
from abele.differences.program_texts import Parted
from abele.errors import DifferenceError
from abele.report import comparison, executable_file
from abele.report.comparison import Files
from abele.report.difference import Difference
from abele.report.journal import FILE as JOURNAL
from abele.report.journal import read_journal
from abele.report.record import FILE, Run, read_run


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsAnswer:
    """Two runs, by what their records say.

    Attributes:
        names: the folders, as given.
        optimizer: its class and values that differ, with the first update that has them.
        options: that differ, with how a call consumes its batch.
        programs: that are not the same in both.
        only: names of programs that only one of the runs has.
        operators: how often programs call them, where that differs.
        kernels: lowerings that differ, and operators that somebody else computes.
        machine: target, versions, processor and threads that differ.
        losses: where they part.
        reasons: what may make losses differ where nothing else does, in sentences.
        notes: what was not compared, in sentences.
    """

    names: tuple[str, str]
    optimizer: tuple[Difference, ...]
    options: tuple[Difference, ...]
    programs: tuple[Parted, ...]
    only: tuple[Difference, ...]
    operators: tuple[Difference, ...]
    kernels: tuple[Difference, ...]
    machine: tuple[Difference, ...]
    losses: Losses
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def recorded(self) -> bool:
        """Whether anything differs that can be why losses do."""
        differing = (self.optimizer, self.options, self.programs, self.only, self.kernels)
        return any(differing) or bool(self.machine)

    @property
    def status(self) -> int:
        """Exit status of a command: 0 if nothing differs, 1 if anything does."""
        calls = self.losses.updates[0] != self.losses.updates[1]
        return DIFFERENT if self.recorded or calls or self.losses.parted else EQUAL

    def data(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        from abele.differences.runs_text import text

        return text(self)


def why_runs_differ(first: Path, second: Path) -> RunsAnswer:
    """Say how two runs differ, from what their records say; nothing is run.

    Args:
        first: folder of a run, or its ``run.json``.
        second: of another one.

    Raises:
        DifferenceError: both are the same run.
        ReportError: there is no run, its record is damaged, or a newer version wrote it.
    """
    runs = read_run(first), read_run(second)
    folders = _folder(first), _folder(second)
    if folders[0].resolve() == folders[1].resolve():
        raise DifferenceError(
            f"{first} and {second} are the same run. Give two runs: each needs a folder of its "
            "own, such as options.enableProfiling(FOLDER) with another FOLDER for each."
        )
    (a, b), journals = runs, (read_journal(folders[0]), read_journal(folders[1]))
    files: tuple[Files, Files] = (a, journals[0]), (b, journals[1])
    of_kind: defaultdict[str, list[Difference]] = defaultdict(list)
    for each in comparison.differences(*files):
        of_kind[_section(each)].append(each)
    answer = RunsAnswer(
        names=(str(first), str(second)),
        optimizer=tuple(of_kind["optimizer"]),
        options=(
            *_training(a, b),
            *(each for each in of_kind["options"] if not _names(each, runs)),
        ),
        programs=tuple(run_programs.of_runs(runs, folders)),
        only=tuple(of_kind["only"]),
        operators=tuple(of_kind["operators"]),
        kernels=(*of_kind["lowerings"], *run_programs.choices(a, b)),
        machine=(*of_kind["machine"], *_system(a, b)),
        losses=losses.compare(*files),
        notes=tuple(_notes(folders, runs)),
    )
    if answer.losses.parted and not answer.programs:
        answer = dataclasses.replace(answer, notes=(*answer.notes, *reasons.next_command(runs)))
    if answer.recorded or answer.losses.first is None:
        return answer
    unknown = next((each for each in runs if each.optimizer is None), a)
    return dataclasses.replace(answer, reasons=tuple(reasons.of(answer.losses, unknown)))


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _section(each: Difference) -> str:
    """Where a difference of the comparison is said here; some are not.

    Those in time and memory change no result. Who computes what, records know of every run, not
    only of those that were timed, see ``run_programs.choices``.
    """
    if each.kind == "kernels":
        sections = {"lowering of ": "lowerings", "who computes ": "computing"}
        named = (name for said, name in sections.items() if each.what.startswith(said))
        return next(named, "operators")
    if each.kind == "programs":
        return "only" if each.what == "names" else "machine"
    return each.kind


def _names(each: Difference, runs: tuple[Run, Run]) -> bool:
    """Whether an option only names the runs."""
    values = zip((each.first, each.second), runs, strict=True)
    return all(value in (repr(run.name), "not set") for value, run in values)


def _training(a: Run, b: Run) -> Iterator[Difference]:
    if a.training != b.training:
        said = ["trains" if each.training else "does not train" for each in (a, b)]
        yield Difference(kind="options", what="training", first=said[0], second=said[1])


def _system(a: Run, b: Run) -> Iterator[Difference]:
    for what in ("python", "system"):
        one, other = getattr(a.machine, what), getattr(b.machine, what)
        if one != other:
            yield Difference(kind="programs", what=what, first=one, second=other)


def _notes(folders: tuple[Path, Path], runs: tuple[Run, Run]) -> Iterator[str]:
    for folder, run in zip(folders, runs, strict=True):
        if not (folder / JOURNAL).is_file():
            yield f"{folder} has no {JOURNAL}, so its losses are not known."
        if run.programs and not run_programs.fingerprints(folder):
            yield (
                f"{folder} has no {executable_file.FILE} that can be read, so programs are "
                "compared by their texts alone, without the values of constants."
            )
        if run.build is None:
            yield f"{folder / FILE} was written before anything was compiled."
