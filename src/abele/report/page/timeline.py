"""Course of a run: building, calls, loss, pipeline and optimizer."""

from __future__ import annotations

from abele.report import record, words
from abele.report.journal import Journal
from abele.report.optimizer import Change, Optimizer
from abele.report.page import markup
from abele.report.page.markup import Content, Html, long_table, section, table, tag
from abele.report.record import Run
from abele.report.status import steady

_POINTS = 240
#: Name and words of each part of the time from call to call.
Parts = tuple[tuple[str, str], ...]
_COMPILING: Parts = (
    ("compiling", "left to a process that compiles, and comparing what it has made"),
)
_IN_CALL: Parts = (
    ("handed", "inputs: from the call to its first micro-step"),
    ("computed", "computing: micro-steps and updates"),
    ("outputs", "outputs: until the results are where the program wants them"),
)
_BEFORE: Parts = (("waited", "before the call: loading data, and what else the program does"),)
_BEFORE_WITH_LOADER: Parts = (
    ("loading", "waiting for a batch of the loader"),
    ("other", "what else the program does between calls"),
)


def timeline(run: Run, journal: Journal) -> Html:
    """Return a section of the stages of building and the parts of calls."""
    content: list[Content] = [_building(run, journal)]
    if journal.windows:
        parts = parts_of(journal)
        content += [tag("h3", "Calls"), _steady(journal, parts)]
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
    rows: list[list[Content]] = [
        [each.what, words.seconds(max(0.0, end - each.at)), f"{each.at:.2f} s"]
        for each, end in zip(stages, ends, strict=False)
        if each.what != "calls"
    ]
    heads = ("stage", "took", "began after")
    parts: list[Content] = [tag("h3", "Building")]
    if run.build is not None:
        seconds = sorted(run.build.seconds.items(), key=lambda each: each[0] != "capture")
        listed = [f"{name} {words.seconds(took)}" for name, took in seconds]
        said = f"Cache: {run.build.cache}. The executable was made in: {', '.join(listed)}."
        parts.append(tag("p", said))
    parts.append(table(heads, rows, numbers=(1, 2)) if rows else tag("p", "Nothing was built."))
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
        ]
        for name, said in parts
    ]
    return tag("div", tag("p", spread), table(("part", "seconds", "share"), rows, (1, 2)))


def loss(journal: Journal) -> Html | None:
    """Return a section of the loss over the run."""
    values = [
        (each.first + each.count, each.loss) for each in journal.windows if each.loss is not None
    ]
    if len(values) < 2:
        return None
    size = -(-len(values) // (2 * _POINTS))
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    means = [sum(value for _, value in group) / len(group) for group in groups]
    y, last = markup.height_of(min(means), max(means)), values[-1][0]
    xs = [group[-1][0] / last * markup.WIDTH for group in groups]
    picture = markup.frame(
        markup.line(list(zip(xs, map(y, means), strict=True))),
        top=f"{words.number(max(means))} to {words.number(min(means))}",
        left="call 1",
        right=f"call {last:,}",
        title=f"Loss from {words.number(values[0][1])} to {words.number(values[-1][1])}",
        height=12,
    )
    return section("Loss", picture, name="loss")


def pipeline(run: record.Run) -> Html | None:
    """Return a section with the times of each stage; None without stages."""
    shown = run.pipeline
    if shown is None or not shown.tasks:
        return None
    length = max(each.end for each in shown.tasks)
    micro_batches = len({each.micro_batch for each in shown.tasks})
    said = (
        f"In the latest call {words.count(micro_batches, 'micro-batch')} went through "
        f"{words.count(len(shown.stages), 'stage')} in {words.seconds(length)}. The bubble, the "
        f"share of time in which stages waited, was {shown.bubble:.0%}; with stages that take "
        f"equally long it would be {shown.ideal:.0%}."
    )
    return section("Pipeline", tag("p", said), _table(shown, length), name="pipeline")


def _table(shown: record.Pipeline, length: float) -> Html:
    trained = any(each.backward for each in shown.tasks)
    rows: list[list[Content]] = []
    for stage, name in enumerate(shown.stages):
        times = [0.0, 0.0]
        for each in shown.tasks:
            if each.stage == stage:
                times[each.backward] += each.end - each.begin
        waited = max(0.0, length - sum(times))
        cells = [words.seconds(each) for each in (*times[: 1 + trained], waited)]
        rows.append([str(stage), name, *cells, words.share(waited, length)])
    ways = ("forward", "backward") if trained else ("forward",)
    heads = ("stage", "blocks", *ways, "waited", "share")
    return table(heads, rows, numbers=(0, *range(2, len(heads))))


_MOST = 12  # rows of a table at first


def optimizer(run: Run) -> Html | None:
    """Return a section of the optimizer's values; None for inference."""
    known = run.optimizer
    if known is None:
        return None
    parts: list[Content] = [tag("p", tag("code", known.name)), _groups(known)]
    if known.values:
        rows: list[list[Content]] = [[name, words.setting(v)] for name, v in known.values.items()]
        parts.append(table(("of all", "value"), rows, numbers=(1,)))
    if known.changes:
        parts += [tag("p", _counted(known)), _changes(known)]
    return section("Optimizer", parts, name="optimizer")


def _groups(known: Optimizer) -> Html:
    names = list(dict.fromkeys(name for group in known.groups for name in group.values))
    rows: list[list[Content]] = [
        [
            str(index),
            f"{group.parameters:,}",
            *(words.setting(group.values[e]) if e in group.values else "" for e in names),
        ]
        for index, group in enumerate(known.groups)
    ]
    heads = ("group", "tensors", *names)
    return long_table(heads, rows, numbers=tuple(range(1, len(heads))), most=_MOST)


def _counted(known: Optimizer) -> str:
    """Return the number of changes, and the value after the last."""
    said = words.count(len(known.changes) + known.left_out, "change")
    last = known.changes[-1]
    left = f" {known.left_out:,} before the last are not kept." if known.left_out else ""
    return f"{said}, the last before call {last.calls + 1:,}: {_listed(last)}.{left}"


def _changes(known: Optimizer) -> Html:
    rows: list[list[Content]] = [[f"{e.calls + 1:,}", _listed(e)] for e in known.changes]
    return long_table(("from call", "values"), rows, numbers=(0,), most=_MOST)


def _listed(change: Change) -> str:
    return ", ".join(f"{name} {words.setting(value)}" for name, value in change.values.items())
