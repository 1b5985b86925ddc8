"""Programs of two runs by their records: which are not the same, and who computes operators."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from abele.differences.program_texts import Parted, parted
from abele.errors import CorruptExecutable
from abele.report import executable_file, record
from abele.report.difference import Difference
from abele.report.kernel_differences import programs_of_both
from abele.report.record import Run
from abele.storage.container import Container


def of_runs(runs: tuple[Run, Run], folders: tuple[Path, Path]) -> Iterator[Parted]:
    """Yield the programs of both runs that are not the same.

    Fingerprints decide where both records have them, else the texts do.
    """
    known = fingerprints(folders[0]), fingerprints(folders[1])
    for name, (one, other) in programs_of_both(*runs).items():
        prints = known[0].get(name, ""), known[1].get(name, "")
        each = parted(one, other)
        by_text = bool(each.slots or any(each.operations))
        if prints[0] != prints[1] if all(prints) else by_text:
            constants = tuple(_constants(folders, name)) if all(prints) else ()
            yield dataclasses.replace(each, fingerprints=prints, constants=constants)


def fingerprints(folder: Path) -> dict[str, str]:
    """Fingerprints of a run's programs, by name; empty where its executable cannot be read."""
    try:
        with Container(folder / executable_file.FILE, executable_file.KIND) as file:
            return dict(file.content["programs"])
    except (OSError, CorruptExecutable, KeyError):
        return {}


def _constants(folders: tuple[Path, Path], program: str) -> Iterator[str]:
    """Constants that both programs have with other values."""
    prefix = f"constants/{program}/"
    kind = executable_file.KIND
    with (
        Container(folders[0] / executable_file.FILE, kind) as first,
        Container(folders[1] / executable_file.FILE, kind) as second,
    ):
        for name in first.names:
            shared = name.startswith(prefix) and name in second.names
            if shared and first.read(name) != second.read(name):
                yield name.removeprefix(prefix)


def choices(a: Run, b: Run) -> Iterator[Difference]:
    """Yield operators of both runs that somebody else computes in one of them."""
    for name, (one, other) in programs_of_both(a, b).items():
        if one.lowering != other.lowering:
            continue  # which says it all
        before, after = _computing(one), _computing(other)
        for operator, phase in sorted(before.keys() & after.keys()):
            first, second = before[operator, phase], after[operator, phase]
            if first != second:
                yield Difference(
                    kind="kernels",
                    what=f"{operator} in {phase} of {name}",
                    first=", ".join(sorted(first)),
                    second=", ".join(sorted(second)),
                )


def _computing(program: record.Program) -> dict[tuple[str, str], set[str]]:
    by: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for each in program.choices:
        by[each.operator, each.phase].add(each.by)
    return by
