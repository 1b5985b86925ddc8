"""The instances of a run: how each went, what it exchanged, and who waited for whom."""

from __future__ import annotations

from collections.abc import Sequence

from abele.report import words
from abele.report.instances import Instance
from abele.report.page import charts
from abele.report.page.markup import Content, Html, html, section, table, tag
from abele.report.record import Run
from abele.report.status import State, status_of, steady

_COLOURS = {State.FINISHED: "good", State.RUNNING: "good"}
# Instances wait for one if its exchanges take less than this share of the longest ones.
_WAITED_FOR = 0.7


def instances(all_of_them: Sequence[Instance]) -> Html | None:
    """Return a table of all instances, including the first; None for a run without others."""
    run = all_of_them[0].run
    count = run.configuration.get("processes", 1)
    if count == 1:
        return None
    said: list[Content] = [_waiting(all_of_them), _missing(all_of_them, count)]
    if all_of_them[0].number:
        link = tag("a", "page of instance 0", href="../report.html")
        said = [html("The ", link, f" shows all {count}.")]
    whole = max((_exchanging(each) for each in all_of_them), default=0.0) or 1.0
    heads = (
        *("instance", "process", "how it went", "calls", "a call (median)", "exchanges"),
        *("each", "took", "in exchanges", "", "last loss"),
    )
    rows = [_row(each, whole) for each in all_of_them]
    note = tag(
        "p",
        "Exchanges are of gradients and what travels with them; their time has waiting for others "
        "in it.",
        class_="soft",
    )
    shown = table(heads, rows, numbers=(3, 4, 5, 6, 7, 8, 10))
    return section("Instances", note, [tag("p", each) for each in said if each], shown,
                   name="instances")  # fmt: skip


def troubled(others: Sequence[Instance]) -> Html | None:
    """Return the trouble of other instances, for the head of the page."""
    parts: list[Content] = []
    for each in others:
        status = status_of(each.journal, each.alive)
        if status.state not in _COLOURS:
            state = tag("b", status.state.value, class_="bad")
            parts.append(tag("p", f"Instance {each.number} ", state, ". ", status.sentence))
    return tag("div", parts, class_="lead") if parts else None


def _row(each: Instance, whole: float) -> list[Content]:
    status, later = status_of(each.journal, each.alive), steady(each.journal)
    calls, moved, took = (each.run.exchanged.get(k, 0.0) for k in ("calls", "bytes", "seconds"))
    losses = [window.loss for window in each.journal.windows if window.loss is not None]
    name = f"{each.number}"
    share = _exchanging(each)
    return [
        tag("a", name, href=f"{each.folder}/report.html") if each.folder else name,
        str(each.run.process.pid),
        tag("span", status.state.value, class_=_COLOURS.get(status.state, "bad")),
        f"{each.journal.calls:,}",
        "" if later is None else words.seconds(later.quarters[2]),
        f"{int(calls):,}",
        words.size(moved / calls) if calls else "",
        words.seconds(took / calls) if calls else "",
        words.share(share, 1.0) if calls else "",
        charts.part(share / whole, "wait"),
        words.number(losses[-1]) if losses else "",
    ]


def _exchanging(each: Instance) -> float:
    """Return the share of exchanges in the time of calls."""
    inside = sum(window.in_calls for window in each.journal.windows)
    return min(1.0, each.run.exchanged.get("seconds", 0.0) / inside) if inside else 0.0


def _waiting(all_of_them: Sequence[Instance]) -> str:
    """Return the instance that waits least in exchanges, if others clearly wait for it."""
    times = {each.number: _per_exchange(each.run) for each in all_of_them}
    if len(times) < 2 or not all(times.values()):
        return ""
    slowest = min(times, key=times.__getitem__)
    longest = max(times.values())
    if times[slowest] > _WAITED_FOR * longest:
        return ""
    return (
        f"The others wait for instance {slowest}: its exchanges take "
        f"{words.seconds(times[slowest])}, theirs up to {words.seconds(longest)}."
    )


def _per_exchange(run: Run) -> float:
    calls = run.exchanged.get("calls", 0.0)
    return run.exchanged.get("seconds", 0.0) / calls if calls else 0.0


def _missing(all_of_them: Sequence[Instance], count: int) -> str:
    """Return the number of instances on other hosts, whose records are there."""
    missing = count - len(all_of_them)
    if missing <= 0:
        return ""
    return (
        f"{len(all_of_them)} of {count} instances have their records here; others are on other "
        "hosts, or have not begun."
    )
