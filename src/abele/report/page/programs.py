"""Lowerings of programs with reasons, changes by passes, and program texts."""

from __future__ import annotations

from abele.report import words
from abele.report.page.markup import (
    Content,
    Html,
    by_program,
    folded,
    long_table,
    section,
    table,
    tag,
)
from abele.report.record import Change, Choice, Program, Run

#: The page shows so much of each program's text; ``run.json`` has more.
TEXT = 120_000
#: And so much of what was there after passes, of all programs together.
TEXTS = 2_500_000
_MOST = 30


def lowerings(run: Run) -> Html:
    """Return a section of lowerings and backends, with reasons."""
    rows: list[list[Content]] = [
        [tag("code", each.name), each.lowering, _why(each)] for each in run.programs
    ]
    parts = [(each.name, _kinds(each), _uses(each), _computers(each)) for each in run.programs]
    first = table(("program", "lowering", "why"), rows)
    return section("Who computes what, and why", first, by_program(parts), name="lowerings")


def _uses(program: Program) -> int:
    return sum(each.count for each in program.choices)


def _kinds(program: Program) -> str:
    kinds = dict.fromkeys(each.by for each in program.choices)
    return f"{words.count(_uses(program), 'operation')} by {', '.join(kinds)}" if kinds else ""


def _why(program: Program) -> list[Content]:
    """Why it got its lowering, and why not those that would have come first."""
    declined = [f"By rule not {name}: {reason}." for name, reason in program.declined.items()]
    return [tag("div", each, class_="why") for each in (f"{program.reason}.", *declined)]


def _computers(program: Program) -> Html:
    """Operators by who computes them and why, those with the most uses first."""
    if not program.choices:  # of an older file
        return tag("p", f"Kernels of our own: {_of_abele(program)}.")
    groups: dict[tuple[str, str], list[Choice]] = {}
    for each in program.choices:
        groups.setdefault((each.by, each.why), []).append(each)
    rows = [
        (sum(each.count for each in group), by, why, group) for (by, why), group in groups.items()
    ]
    cells: list[list[Content]] = [
        [
            f"{count:,}",
            tag("b", by),
            tag("div", why, class_="why"),
            tag("div", _listed(group), class_="list"),
        ]
        for count, by, why, group in sorted(rows, key=lambda row: -row[0])
    ]
    heads = ("uses", "computed by", "why", "operators")
    return long_table(heads, cells, numbers=(0,), most=_MOST)


def _listed(group: list[Choice]) -> str:
    """Operators with their phases: how often each, where that is more than once."""
    counts: dict[str, list[str]] = {}
    for each in group:
        often = f"{each.phase}\u00a0x\u00a0{each.count:,}" if each.count > 1 else each.phase
        counts.setdefault(each.operator, []).append(often)
    return ", ".join(f"{name} ({', '.join(phases)})" for name, phases in counts.items())


def _of_abele(program: Program) -> str:
    counts: dict[str, int] = {}
    for each in program.operators:
        if each.name.startswith("abele."):
            name = each.name.removeprefix("abele.").removesuffix(".default")
            counts[name] = counts.get(name, 0) + each.count
    return ", ".join(f"{name} x {count}" for name, count in counts.items()) or "none"


def passes(run: Run) -> Html:
    """Return a section of passes, and of program texts after each pass."""
    parts: list[tuple[str, str, float, Content]] = []
    left = TEXTS
    for program in run.programs:
        content: list[Content] = [_stamps(program)]
        for each in program.changes:
            content.append(_change(each, shows=len(each.after) <= left))
            left -= len(each.after)
        content.append(folded("The program after all passes", tag("pre", _cut(program.text))))
        nodes = program.history[-1].nodes if program.history else 0
        parts.append((program.name, words.count(nodes, "node"), nodes, content))
    return section("Programs", by_program(parts), name="programs")


def _stamps(program: Program) -> Html | None:
    """Return a table of the time and nodes of each pass."""
    if not program.history:
        return None
    first, last = program.history[0], program.history[-1]
    rows: list[list[Content]] = [
        [tag("code", stamp.by), words.seconds(stamp.seconds), f"{stamp.nodes:,}"]
        for stamp in program.history
    ]
    took = words.seconds(sum(stamp.seconds for stamp in program.history))
    said = (
        f"All {len(rows)} steps that made it, in {took}: "
        f"{words.count(first.nodes, 'node')} after {first.by}, {last.nodes:,} at the end"
    )
    return folded(said, table(("pass", "took", "nodes after it"), rows, numbers=(1, 2)))


def _change(change: Change, *, shows: bool) -> Html | None:
    """Return the lines that a pass removed and added, and the text after it; None without any."""
    if not change.removed + change.added:
        return None
    said = f"{change.by}: {words.count(change.added, 'line')}"
    changed = None
    if change.text:
        removed = words.count(change.removed, "line")
        said = f"{change.by}: {removed} removed, {change.added} added"
        changed = tag("pre", change.text)
    if not change.after:  # of an older file
        return folded(said, changed)
    after: Content = tag("p", "The program after it is in run.json.", class_="soft")
    if shows:
        after = tag("pre", change.after)
        if changed is not None:
            after = folded(f"The program after {change.by}", after)
    return folded(said, changed, after)


def _cut(text: str) -> str:
    if len(text) <= TEXT:
        return text
    return f"{text[:TEXT]}\n# {len(text) - TEXT:,} characters more are in run.json"


def options(run: Run) -> Html | None:
    """Options that somebody has set, and what each leads to."""
    if not run.options:
        return None
    rows: list[list[Content]] = [
        [tag("code", each.name), tag("code", each.value, class_="value"), each.status, each.note]
        for each in run.options
    ]
    return section(
        "Options", table(("option", "value", "status", "what it does"), rows), name="options"
    )
