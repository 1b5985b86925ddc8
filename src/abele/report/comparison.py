"""How two runs differ: optimizer, options, programs, time, memory and kernels.

Those of the optimizer come first, of all others the largest.

Times differ when they lie outside each other's spread: three quarters of one beyond three quarters
of the other, and the medians by more than ``LEAST``. So two runs of the same program report no
change, but for what one of them was really slowed down by. ``kernel_differences`` has what
is compared inside programs.
"""

from __future__ import annotations

import datetime

from abele.report import kernel_differences as kernels
from abele.report import words
from abele.report.difference import Difference, apart, of_numbers
from abele.report.journal import Journal
from abele.report.optimizer_differences import of_optimizers
from abele.report.page import document
from abele.report.page.markup import Content, Html, html, long_table, section, table, tag
from abele.report.page.overview import micro_batches, per_call
from abele.report.record import Run
from abele.report.status import Steady, status_of, steady

LEAST = 0.03
_MOST_ROWS = 12  # of a table at first
_ALWAYS_DIFFER = ("began", "half of all take")

#: A run as its two files say it.
Files = tuple[Run, Journal]


def differences(first: Files, second: Files) -> list[Difference]:
    """All differences: those of the optimizer, those in numbers from the largest on, others."""
    (a, calls_a), (b, calls_b) = first, second
    differing = [
        *_time(steady(calls_a), steady(calls_b)),
        *_memory(a, b),
        *kernels.of_programs(a, b),
        *_programs(a, b),
        *_settings(a, b),
    ]
    by_size = sorted(differing, key=lambda each: -each.weight)
    return [*of_optimizers(first, second), *by_size]


def _time(a: Steady | None, b: Steady | None) -> list[Difference]:
    if a is None or b is None:
        return []
    differing: list[Difference] = []
    middle_a, middle_b = a.quarters[2], b.quarters[2]
    if apart(a.quarters[1:4], b.quarters[1:4]) and abs(middle_b - middle_a) > LEAST * middle_a:
        differing.append(of_numbers("time", "a call (median)", middle_a, middle_b, words.seconds))
    # What is waited for before a call counts where it is much of the time from call to call.
    waits = [("before a call, such as for data (median)", a.waits, b.waits)]
    if a.loading and b.loading:
        waits.append(("waiting for a batch, before a call (median)", a.loads, b.loads))
    for said, before_a, before_b in waits:
        one, other, whole = before_a[1], before_b[1], max(a.whole, b.whole)
        if apart(before_a, before_b) and abs(other - one) > LEAST * whole:
            differing.append(of_numbers("time", said, one, other, words.seconds, whole=whole))
    return differing


def _memory(a: Run, b: Run) -> list[Difference]:
    differing = [
        of_numbers("memory", role.replace("_", " "), a.state[role], b.state[role], words.size)
        for role in a.state
        if role in b.state and a.state[role] != b.state[role]
    ]
    for name, (one, other) in kernels.programs_of_both(a, b).items():
        if one.memory.peak != other.memory.peak:
            said = f"peak of {name}"
            differing.append(
                of_numbers("memory", said, one.memory.peak, other.memory.peak, words.size)
            )
    return differing


def _programs(a: Run, b: Run) -> list[Difference]:
    names = [", ".join(each.name for each in run.programs) or "none" for run in (a, b)]
    differing: list[Difference] = []
    if names[0] != names[1]:
        differing.append(Difference(kind="programs", what="names", first=names[0], second=names[1]))
    for what, one, other in (
        ("target", a.build and a.build.target, b.build and b.build.target),
        ("what runs", a.build and a.build.running, b.build and b.build.running),
        ("fallback", a.build and a.build.fallback, b.build and b.build.fallback),
        ("threads", a.machine.threads, b.machine.threads),
        ("processor", a.machine.processor, b.machine.processor),
        ("torch", a.machine.torch, b.machine.torch),
        ("abele", a.abele, b.abele),
    ):
        if one != other:
            differing.append(
                Difference(kind="programs", what=what, first=_say(one), second=_say(other))
            )
    return differing


def _settings(a: Run, b: Run) -> list[Difference]:
    first = {each.name: each.value for each in a.options}
    second = {each.name: each.value for each in b.options}
    first |= {key: str(value) for key, value in a.configuration.items()}
    second |= {key: str(value) for key, value in b.configuration.items()}
    return [
        Difference(
            kind="options", what=name, first=_say(first.get(name)), second=_say(second.get(name))
        )
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]


def _say(value: object) -> str:
    return "not set" if value is None else str(value)


def page(first: Files, second: Files) -> str:
    """Return a page that says how two runs differ."""
    differing = differences(first, second)
    timed = steady(first[1]) is not None and steady(second[1]) is not None
    runs = first[0], second[0]
    verdict = _verdict(differing, timed=timed, same=_same(*runs, differing), more=_not_alike(*runs))
    names = [run.name for run in runs]
    alike = names[0] == names[1]
    title = f"Two runs of {names[0]}" if alike else f"{names[0]} and {names[1]}"
    head = html(tag("h1", title), verdict)
    parts: list[Content] = [
        section("Both runs", _side_by_side(first, second), name="runs"),
        section("Differences", _groups(differing), name="differences") if differing else None,
        [tag("p", each, class_="soft") for each in kernels.not_compared(first[0], second[0])],
    ]
    return document("Comparison of two runs", html(head, parts))


def _same(first: Run, second: Run, differing: list[Difference]) -> bool:
    """Whether the same code ran for both, so that only times can differ."""
    keys = {each.build.executable for each in (first, second) if each.build is not None}
    kinds = ("time", "kernel time", "optimizer")
    return len(keys) == 1 and all(each.kind in kinds for each in differing)


def _not_alike(first: Run, second: Run) -> str:
    """Says it where times of calls are those of different work."""
    one, other = (per_call(each.configuration) for each in (first, second))
    said = f" A call of the first does {one}, of the second {other}: compare micro-batches."
    return "" if one == other else said


def _verdict(differing: list[Difference], *, timed: bool, same: bool, more: str) -> Html:
    longer = next(
        (each for each in differing if each.kind == "time" and each.change is not None), None
    )
    if not differing:
        return tag("p", "No difference was found.", class_="lead")
    said = f"{words.count(len(differing), 'difference')}. {_of_optimizer(differing)}"
    if longer is None or longer.change is None:
        alike = "Times of calls are the same within their spread." if timed else ""
        return tag("p", said, more or alike, class_="lead")
    kind = "worse" if longer.change > 0 else "better"
    text = f"{longer.what}: {longer.first} and {longer.second}, {_way(longer.change)}."
    if same:
        said = (
            f"{_of_optimizer(differing)}No difference between the programs: the same executable "
            "ran. Its times differ, so the machine was slower for one of them, or the loop around "
            "the calls was. "
        )
        return tag("p", said, text[0].upper() + text[1:], class_="lead")
    return tag("p", said, tag("b", text, class_=kind), more, class_="lead")


def _of_optimizer(differing: list[Difference]) -> str:
    """What decides about losses before anything else: the first difference of the optimizers."""
    first = next((each for each in differing if each.kind == "optimizer"), None)
    return (
        ""
        if first is None
        else f"Of the optimizer, {first.what}: {first.first} and {first.second}. "
    )


def _way(change: float) -> str:
    """How much longer or shorter, in words; times where percents would be hard to read."""
    if change > 1:
        return f"{1 + change:,.1f} times as long"
    if change < -0.5:
        return f"{1 / (1 + change):,.1f} times as fast" if change > -1 else "shorter"
    return f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'}"


def _side_by_side(first: Files, second: Files) -> Html:
    """What is known of each, also where it does not differ."""
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


#: Kinds of differences as they are shown: what was asked for, what came of it, and how.
_GROUPS = {
    "optimizer": "Optimizer",
    "options": "Options",
    "programs": "Programs and machine",
    "time": "Time",
    "memory": "Memory",
    "kernels": "Kernels",
    "kernel time": "Time of kernels",
}


def _groups(differing: list[Difference]) -> list[Content]:
    shown: list[Content] = []
    for kind, title in _GROUPS.items():
        group = [each for each in differing if each.kind == kind]
        if group:
            shown.append([tag("h3", title), _table(group)])
    return shown


def _table(differing: list[Difference]) -> Html:
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
    """In percents, or in times where these would be hard to read."""
    if each.change is None:
        return ""
    return f"{each.change:+.1%}" if each.change < 10 else f"{1 + each.change:,.0f} times"
