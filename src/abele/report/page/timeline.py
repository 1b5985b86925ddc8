"""Course of a run: building, calls, loss, pipeline, other instances and optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from abele.report import record, words
from abele.report.instances import Instance
from abele.report.journal import Journal
from abele.report.optimizer import Optimizer
from abele.report.page import markup
from abele.report.page.markup import Content, Html, html, long_table, section, table, tag
from abele.report.record import Run
from abele.report.status import State, status_of, steady

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
            markup.part(took / whole, "placed", begin=at / whole),
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
            markup.part(getattr(later, name) / later.whole if later.whole else 0, kind),
        ]
        for kind, name, said in parts
    ]
    return tag("div", tag("p", spread), table(("part", "seconds", "share", ""), rows, (1, 2)))


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
    y, last = markup.height_of(low, high), values[-1][0]
    xs = [group[-1][0] / last * markup.WIDTH for group in groups]
    shapes: list[Content] = []
    if size > 1:
        lower = list(zip(xs, map(y, lows), strict=True))
        shapes.append(markup.area(lower, list(zip(xs, map(y, highs), strict=True))))
    shapes.append(markup.line(list(zip(xs, map(y, middles), strict=True))))
    picture = markup.frame(
        shapes,
        top=f"{words.number(high)} to {words.number(low)}",
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
        markup.part(share / whole, "wait"),
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


_MOST = 12  # rows of a table at first
#: Values as they are shown, by name and by how many calls were made before.
_Texts = dict[str, dict[int, str]]


def optimizer(run: Run) -> Html | None:
    """Return the section; None for inference."""
    if run.optimizer is None:
        return None
    known = run.optimizer
    texts = _texts(known)
    parts: list[Content] = [tag("p", tag("code", known.name)), _groups(known, texts)]
    if known.values:
        rows: list[list[Content]] = [[name, texts[name][0]] for name in known.values]
        parts.append(table(("of all", "value"), rows, numbers=(1,)))
    if known.changes:
        parts += [tag("p", _counted(known, texts)), _changes(known, texts)]
    return section("Optimizer", parts, name="optimizer")


def _texts(known: Optimizer) -> _Texts:
    texts: _Texts = {}
    for name in {**known.begins_with(), **known.latest()}:
        history = list(known.history(name))
        values = words.settings([value for _, value in history])
        texts[name] = {calls: text for (calls, _), text in zip(history, values, strict=True)}
    return texts


def _groups(known: Optimizer, texts: _Texts) -> Html:
    names = list(dict.fromkeys(name for group in known.groups for name in group.values))
    rows: list[list[Content]] = [
        [
            str(index),
            f"{group.parameters:,}",
            *(texts[f"group{index}.{name}"][0] if name in group.values else "" for name in names),
        ]
        for index, group in enumerate(known.groups)
    ]
    heads = ("group", "tensors", *names)
    return long_table(heads, rows, numbers=tuple(range(1, len(heads))), most=_MOST)


def _counted(known: Optimizer, texts: _Texts) -> str:
    """Return the number of changes, and the value after the last."""
    said = words.count(len(known.changes) + known.left_out, "change")
    last = known.changes[-1]
    latest = ", ".join(f"{name} {texts[name][last.calls]}" for name in last.values)
    left = f" {known.left_out:,} before the last are not kept." if known.left_out else ""
    return f"{said}, the last before call {last.calls + 1:,}: {latest}.{left}"


def _changes(known: Optimizer, texts: _Texts) -> Html:
    rows: list[list[Content]] = [
        [
            f"{each.calls + 1:,}",
            ", ".join(f"{name} {texts[name][each.calls]}" for name in each.values),
        ]
        for each in known.changes
    ]
    return long_table(("from call", "values"), rows, numbers=(0,), most=_MOST)
