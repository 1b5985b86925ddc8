"""Operators of programs by their cost."""

from __future__ import annotations

from collections import Counter, defaultdict

from abele.report import record, words
from abele.report.journal import Journal
from abele.report.page import charts
from abele.report.page.markup import Content, Html, by_program, long_table, section, tag

_MOST = 30


def operators(run: record.Run, journal: Journal) -> Html:
    """Return a table of each program's operators by descending bytes."""
    parts: list[tuple[str, str, float, Content]] = []
    for program in run.programs:
        moved = sum(each.bytes for each in program.operators)
        total = words.count(sum(each.count for each in program.operators), "operation")
        said = f"{total}, {words.size(moved)}"
        parts.append((program.name, said, moved, _table(program)))
    note = (
        "Operations are those of convolutions, matrix products and attention. Bytes are of the "
        "tensors that an operator reads and makes, the least that it could move if nothing were "
        "joined; views move none. The next section has the reasons for who computes each."
    )
    if journal.end is not None and not any(each.timing or each.untimed for each in run.programs):
        note += (
            " How long each takes was not measured: abele report RUN --measure does so, on the "
            "same kind of machine."
        )
    return section(
        "What operators need", tag("p", note, class_="soft"), by_program(parts), name="operators"
    )


def _table(program: record.Program) -> Html:
    chosen: dict[tuple[str, str], list[record.Choice]] = defaultdict(list)
    for choice in program.choices:
        chosen[choice.phase, choice.operator].append(choice)
    rows: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in program.operators:
        entry = rows[each.phase, each.name]
        for index, value in enumerate((each.count, each.operations, each.bytes)):
            entry[index] += value
    ordered = sorted(rows.items(), key=lambda item: (-item[1][2], -item[1][1], item[0]))
    whole = sum(sums[2] for sums in rows.values())
    top = max((sums[2] for sums in rows.values()), default=0) or 1
    cells: list[list[Content]] = [
        [
            tag("code", name),
            phase,
            f"{count:,}",
            words.size(moved),
            words.share(moved, whole),
            charts.part(moved / top),
            f"{words.large(work)}FLOP" if work else "",
            _who(chosen[phase, name]),
        ]
        for (phase, name), (count, work, moved) in ordered
    ]
    heads = ("operator", "phase", "uses", "bytes", "share", "", "operations", "computed by")
    return long_table(heads, cells, numbers=(2, 3, 4, 6), most=_MOST)


def _who(choices: list[record.Choice]) -> str:
    """Format the backend of an operator, with counts if it has several."""
    counts: Counter[str] = Counter()
    for each in choices:
        counts[each.by] += each.count
    if len(counts) == 1:
        return next(iter(counts))
    # What belongs together stays on one line.
    return ", ".join(f"{by}\u00a0x\u00a0{count:,}" for by, count in counts.most_common())
