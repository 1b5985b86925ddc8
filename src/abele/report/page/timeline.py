"""The host's time: what was built, how long calls took and why, and the loss."""

from __future__ import annotations

from collections.abc import Sequence

from abele.report import words
from abele.report.journal import Journal, Window, joined
from abele.report.page import charts
from abele.report.page.markup import Content, Html, section, table, tag
from abele.report.record import Run
from abele.report.status import steady

_POINTS = 240
#: Colour, name and words of each part of the time from call to call.
Parts = tuple[tuple[str, str, str], ...]
_COMPILING: Parts = (
    ("c3", "compiling", "left to a process that compiles, and comparing what it has made"),
)
_IN_CALL: Parts = (
    ("c6", "handed", "inputs: from the call to its first micro-step"),
    ("c1", "computed", "computing: micro-steps and updates"),
    ("c2", "outputs", "outputs: until the results are where the program wants them"),
)
_BEFORE: Parts = (
    ("wait", "waited", "before the call: loading data, and what else the program does"),
)
_BEFORE_WITH_LOADER: Parts = (
    ("c4", "loading", "waiting for a batch of the loader"),
    ("wait", "other", "what else the program does between calls"),
)


def timeline(run: Run, journal: Journal) -> Html:
    """Return a section of the stages of building and the parts of calls."""
    content: list[Content] = [_building(run, journal)]
    if journal.windows:
        parts = parts_of(journal)
        content += [tag("h3", "Calls"), _steady(journal, parts), _calls(journal, parts)]
    return section("Time on the host", content, name="time")


def parts_of(journal: Journal) -> Parts:
    """Split the time from call to call; loader and compiler only if they took some."""
    has_loader = any(each.loading for each in journal.windows)
    compiles = any(each.compiling for each in journal.windows)
    before = _BEFORE_WITH_LOADER if has_loader else _BEFORE
    return (*before, *(_COMPILING if compiles else ()), *_IN_CALL)


def _building(run: Run, journal: Journal) -> Html:
    stages = journal.of_kind("stage")
    last = journal.moments[-1].at if journal.moments else 0.0
    ends = [*(each.at for each in stages[1:]), last]
    lasted = [
        (each.what, max(0.0, end - each.at), each.at)
        for each, end in zip(stages, ends, strict=False)
        if each.what != "calls"
    ]
    whole = max((at + took for _, took, at in lasted), default=0) or 1.0
    rows: list[list[Content]] = [
        [
            what,
            words.seconds(took),
            charts.part(took / whole, "placed", begin=at / whole),
            f"{at:.2f} s",
        ]
        for what, took, at in lasted
    ]
    heads = ("stage", "took", "", "began after")
    parts: list[Content] = [tag("h3", "Building")]
    if run.build is not None:
        seconds = sorted(run.build.seconds.items(), key=lambda each: each[0] != "capture")
        listed = [f"{name} {words.seconds(took)}" for name, took in seconds]
        said = f"Cache: {run.build.cache}. The executable was made in: {', '.join(listed)}."
        parts.append(tag("p", said))
    parts.append(table(heads, rows, numbers=(1, 3)) if rows else tag("p", "Nothing was built."))
    return tag("div", parts)


def _steady(journal: Journal, parts: Parts) -> Html | None:
    later = steady(journal)
    if later is None:
        return None
    low, first, middle, third, high = later.quarters
    spread = (
        f"{words.count(later.count, 'call')} after the first ones: median "
        f"{words.seconds(middle)}, half of them {words.seconds(first)} to {words.seconds(third)}, "
        f"all {words.seconds(low)} to {words.seconds(high)}. From call to call "
        f"{words.seconds(later.whole)} on average:"
    )
    rows: list[list[Content]] = [
        [
            said,
            words.seconds(getattr(later, name)),
            words.share(getattr(later, name), later.whole),
            charts.part(getattr(later, name) / later.whole if later.whole else 0, kind),
        ]
        for kind, name, said in parts
    ]
    return tag("div", tag("p", spread), table(("part", "seconds", "share", ""), rows, (1, 2)))


def _calls(journal: Journal, parts: Parts) -> Html:
    groups = grouped(journal.windows)
    height = sorted(_each(group, parts)[1] for group in groups)
    # A few long calls (the first, a saved checkpoint) would press all others flat.
    top = 1.25 * height[int(0.95 * (len(height) - 1))]
    rows: list[tuple[float, list[tuple[str, float, str]]]] = []
    for group in groups:
        values, total = _each(group, parts)
        first, last = group.first + 1, group.first + group.count
        where = f"call {first}" if first == last else f"calls {first} to {last}"
        shrink = min(1.0, top / total) if total else 1.0
        said = f"{where}: {words.seconds(total)} from call to call"
        rows.append(
            (
                charts.WIDTH * group.count / journal.calls,
                [(kind, value * shrink, f"{said}, {name} {words.seconds(value)}")
                 for (kind, name, _), value in zip(parts, values, strict=True)],
            )
        )  # fmt: skip
    picture = charts.frame(
        charts.bars(rows, top),
        top=f"{words.seconds(top)} from call to call",
        left="call 1",
        right=f"call {journal.calls:,}",
        title="Parts of calls, over the run",
        height=10,
    )
    return tag("div", picture, charts.legend([(kind, said) for kind, _, said in parts]))


def _each(window: Window, parts: Parts) -> tuple[list[float], float]:
    """Seconds of each part of one call, on average, and their sum."""
    values = [getattr(window, name) / window.count for _, name, _ in parts]
    return values, sum(values)


def grouped(windows: Sequence[Window], points: int = _POINTS) -> list[Window]:
    """At most ``points`` windows of about as many calls each, neighbours joined."""
    least = sum(each.count for each in windows) / points
    groups: list[list[Window]] = [[]]
    for each in windows:
        if sum(other.count for other in groups[-1]) >= least:
            groups.append([])
        groups[-1].append(each)
    return [joined(group) for group in groups if group]


def loss(journal: Journal) -> Html | None:
    """Return a section of the loss over the run."""
    values = [
        (each.first + each.count, each.loss) for each in journal.windows if each.loss is not None
    ]
    if len(values) < 2:
        return None
    size = -(-len(values) // (2 * _POINTS))
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    middles = [sum(v for _, v in group) / len(group) for group in groups]
    lows, highs = ([pick(v for _, v in group) for group in groups] for pick in (min, max))
    low, high = min(lows), max(highs)
    y, last = charts.height_of(low, high), values[-1][0]
    xs = [group[-1][0] / last * charts.WIDTH for group in groups]
    shapes: list[Content] = []
    if size > 1:
        lower = list(zip(xs, map(y, lows), strict=True))
        shapes.append(charts.area(lower, list(zip(xs, map(y, highs), strict=True))))
    shapes.append(charts.line(list(zip(xs, map(y, middles), strict=True))))
    picture = charts.frame(
        shapes,
        top=f"{words.number(high)} to {words.number(low)}",
        left="call 1",
        right=f"call {last:,}",
        title=f"Loss from {words.number(values[0][1])} to {words.number(values[-1][1])}",
        height=12,
    )
    return section("Loss", picture, name="loss")
