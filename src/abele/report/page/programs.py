"""How each program is lowered and why, what each pass did, and its text."""

from __future__ import annotations

from collections import Counter

from abele.report import words
from abele.report.page.markup import Content, Html, folded, section, table, tag
from abele.report.record import Change, Program, Run

#: The page shows so much of each program's text; ``run.json`` has more.
TEXT = 120_000


def lowerings(run: Run) -> Html:
    """Which lowering each program got, and why; who computes how many of its operators."""
    rows: list[list[Content]] = [
        [tag("code", each.name), each.lowering, _why(each), _computers(each)]
        for each in run.programs
    ]
    heads = ("program", "lowering", "why", "operators by who computes them")
    note = tag("p", "Each operator's reason is beside it, above.", class_="soft")
    return section("Who computes what", note, table(heads, rows), name="lowerings")


def _why(program: Program) -> list[Content]:
    """Why it got its lowering, and why not those that would have come first."""
    declined = [f"{name} does not: {reason}." for name, reason in program.declined.items()]
    return [tag("div", each, class_="why") for each in (program.reason, *declined)]


def _computers(program: Program) -> str:
    if not program.choices:  # of an older file
        return _own(program)
    counts: Counter[str] = Counter()
    for each in program.choices:
        counts[each.by] += each.count
    return ", ".join(f"{name} x {count:,}" for name, count in counts.most_common())


def _own(program: Program) -> str:
    counts: dict[str, int] = {}
    for each in program.operators:
        if each.name.startswith("abele."):
            name = each.name.removeprefix("abele.").removesuffix(".default")
            counts[name] = counts.get(name, 0) + each.count
    return ", ".join(f"{name} x {count}" for name, count in counts.items()) or "none"


def passes(run: Run) -> Html:
    """The stamps of each program, and its text after the last pass."""
    parts: list[Content] = []
    for program in run.programs:
        rows: list[list[Content]] = [
            [tag("code", stamp.by), words.seconds(stamp.seconds), f"{stamp.nodes:,}"]
            for stamp in program.history
        ]
        parts += [
            tag("h3", tag("code", program.name)),
            table(("pass", "took", "nodes after it"), rows, numbers=(1, 2)),
            [_change(each) for each in program.changes],
            folded("The program after all passes", tag("pre", _cut(program.text))),
        ]
    return section("Programs", parts, name="programs")


def _change(change: Change) -> Html | None:
    """What a pass took away and added; nothing for one that changed nothing."""
    if not change.removed + change.added:
        return None
    said = (
        f"{change.by}: {words.count(change.removed, 'line')} removed, "
        f"{words.count(change.added, 'line')} added"
    )
    return folded(said, tag("pre", change.text))


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


def instances(run: Run) -> Html | None:
    """What updates have exchanged with other processes."""
    if not run.exchanged.get("calls"):
        return None
    calls, moved, took = (run.exchanged.get(key, 0.0) for key in ("calls", "bytes", "seconds"))
    said = (
        f"{words.count(int(calls), 'exchange')} of {words.size(moved / calls)} each, "
        f"{words.seconds(took / calls)} on average, waiting for others included."
    )
    return section("Instances", tag("p", said), name="instances")
