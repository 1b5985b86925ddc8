"""Sections of a run's page: verdict, errors, what ran where, building, calls, loss, optimizer."""

from __future__ import annotations

import math

from abele.report import words
from abele.report.journal import Journal, Moment
from abele.report.optimizer import Change, Optimizer
from abele.report.page import markup
from abele.report.page.markup import Content, Html, facts, html, long_table, section, table, tag
from abele.report.record import Build, Pipeline, Run
from abele.report.status import State, Status, steady

SCATTERED = 2.0
_AWAITED = " until compiled ones are ready"  # in ``compile.executable.Running.sentence()``
_UNCALLED = (
    "Nothing was compiled, and nothing ran on a device: the program made a wrapper of this model "
    "and never called it."
)
_COLOURS = {State.FINISHED: "good", State.RUNNING: "good"}


def verdict(run: Run, journal: Journal, status: Status) -> Html:
    """Return the page's lead paragraph on the course of a run."""
    kind = "Training" if run.training else "Inference"
    where = f" on {run.build.target}" if run.build is not None else ""
    colour = _COLOURS.get(status.state, "bad")
    parts = [kind, where, " ", tag("b", status.state.value, class_=colour)]
    later = steady(journal)
    if later is not None:
        middle = later.quarters[2]
        often = f": {words.count(journal.calls, 'call')}, {words.seconds(middle)} each (median"
        # Where some calls take far longer, the median alone would say that all was well.
        if later.in_calls > SCATTERED * middle:
            often += f"; {words.seconds(later.in_calls)} on average, some took far longer"
        parts.append(f"{often})")
    said = html(
        parts, ". ", status.sentence, " ", _bound(run), " ", _loss(journal), " ", _peak(run)
    )
    begun = journal.calls or run.build or journal.of_kind("stage") or journal.end is None
    fallback = ""
    if run.build is not None and run.build.fallback:
        reason = f"It ran on the slower target {run.build.target}: {run.build.fallback}"
        fallback = reason.partition(". ")[0] + "."
    warnings = ["" if begun else _UNCALLED, run.host_said if run.host_steps else "", fallback]
    shown = [tag("p", tag("b", each, class_="bad"), class_="lead") for each in warnings if each]
    return html(tag("p", said, class_="lead"), shown)


def _running(build: Build, journal: Journal) -> str:
    """Describe which programs a run executed, and which are still being compiled."""
    now, awaits, _ = build.running.partition(_AWAITED)
    if not awaits or journal.end is None:
        return build.running
    return f"{now}; compiled ones were not ready when the run ended"


def _bound(run: Run) -> str:
    """Return a sentence on the bottleneck of the loop over a data loader; empty if unknown."""
    said = None if run.loop is None else run.loop.sentence()
    return f"The loop was {said}." if said else ""


def _loss(journal: Journal) -> str | Html:
    losses = [each.loss for each in journal.windows if each.loss is not None]
    bad = sum(each.not_finite for each in journal.windows)
    if bad:
        first = next(each for each in journal.windows if each.not_finite)
        last = first.first + first.count - 1
        numbers = (
            f"call {last + 1}" if first.count == 1 else f"calls {first.first + 1} to {last + 1}"
        )
        said = f"The loss was not finite in {words.count(bad, 'call')}, first in {numbers}."
        return tag("b", said, class_="bad")
    if len(losses) < 2:
        return ""
    return f"The loss went from {words.number(losses[0])} to {words.number(losses[-1])}."


def _peak(run: Run) -> str:
    if not run.programs:
        return ""
    top = max(each.memory.peak for each in run.programs)
    return f"It needs {words.size(sum(run.state.values()))} of state and {words.size(top)} beside."


def trouble(journal: Journal, status: Status) -> list[Html]:
    """Return an HTML box for each error of a run, first the error that ended the run."""
    errors = journal.of_kind("error")
    if status.error is not None:
        errors = [*(each for each in errors if each is not status.error), status.error]
    groups = _together(errors)
    if status.error is not None:
        groups = [groups[-1], *groups[:-1]]
    shown = [_error(group) for group in groups[:5]]
    if more := len(groups) - len(shown):
        shown.append(tag("p", f"And {words.count(more, 'error')} more in the journal."))
    return shown


def _together(errors: list[Moment]) -> list[list[Moment]]:
    """Group each error of a run with earlier ones whose text it contains.

    An error is recorded for its call, again if it ends the program, and perhaps as the cause of
    another error. The last error of a group has the most text.
    """
    groups: list[list[Moment]] = []
    for each in errors:
        parts = [group for group in groups if group[-1].what in each.what]
        groups = [group for group in groups if group not in parts]
        groups.append([*(error for part in parts for error in part), each])
    return groups


def _error(group: list[Moment]) -> Html:
    error = group[-1]
    before = list(dict.fromkeys(each.where for each in group if each.where != error.where))
    more = f" (noted in {', '.join(before[:3])})" if before else ""
    head = f"{error.type} in {error.where}{more}, {words.seconds(error.at)} after the beginning"
    text = tag("pre", error.what[:20_000])
    return tag("div", tag("b", head), text, class_="trouble", role="group", aria_label="Error")


def proof(run: Run, journal: Journal) -> Html:
    """Return a section on a run's target, lowerings, executable, calls, and steps on the host."""
    build = run.build
    rows = [("calls", f"{journal.calls:,}")]
    if build is not None:
        forced = " (asked for)" if build.forced else ""
        rows += [
            ("target", build.target + forced),
            ("programs", ", ".join(f"{each.name}: {each.lowering}" for each in run.programs)),
            ("what runs" if journal.end is None else "what ran", _running(build, journal)),
            ("compared with the interpreter", build.check or "no: nothing compiled has run"),
            ("executable", build.executable[:16]),
            ("cache", build.cache + (f": {build.why}" if build.why else "")),
        ]
        if build.fallback:
            rows.append(("fallback", build.fallback))
    if run.host_steps is not None:
        outside = f"{run.host_steps:,}" if run.host_steps else "none: all ran in these programs"
        rows.append(("training steps by plain PyTorch", outside))
    rows += [
        ("processor", f"{run.machine.processor}, {words.count(run.machine.cores, 'core')}"),
        ("threads", str(run.machine.threads)),
        ("memory of the machine", words.size(run.machine.memory_bytes)),
        ("versions", f"abele {run.abele}, torch {run.machine.torch}, Python {run.machine.python}"),
        ("one call", per_call(run.configuration)),
    ]
    if calls := run.exchanged.get("calls"):
        moved, took = run.exchanged["bytes"] / calls, run.exchanged["seconds"] / calls
        said = f"{calls:,.0f}, each of {words.size(moved)} in {words.seconds(took)}"
        rows.append(("exchanges with other instances", f"{said}, waiting included"))
    said = [tag("p", note) for note in (*run.notes, *(m.what for m in journal.of_kind("note")))]
    return section("What ran where", facts(rows), said, name="proof")


def per_call(configuration: dict[str, int]) -> str:
    """Describe how a call splits its batch: iterations, micro-batches, replicas and processes."""
    names = {
        "device_iterations": "device iteration",
        "gradient_accumulation": "accumulated micro-batch",
        "replicas": "replica",
        "processes": "process",
    }
    parts = [
        words.count(configuration[key], noun)
        if noun != "process"
        else f"{configuration[key]} processes"
        for key, noun in names.items()
        if configuration.get(key, 1) > 1
    ]
    return " x ".join(parts) or "one micro-batch"


def micro_batches(configuration: dict[str, int]) -> int:
    """Return the number of micro-batches per call of a process, replicas included."""
    names = "device_iterations", "gradient_accumulation", "replicas"
    return math.prod(configuration.get(name, 1) for name in names)


# -- time, loss, pipeline and optimizer ------------------------------------------------------------

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
    """Return a section of the page on the time of building and of calls."""
    content: list[Content] = [_building(run, journal)]
    if journal.windows:
        parts = parts_of(journal)
        content += [tag("h3", "Calls"), _steady(journal, parts)]
    return section("Time on the host", content, name="time")


def parts_of(journal: Journal) -> Parts:
    """Return the parts into which the time per call is split, with a label for each."""
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
    """Return a section of the page with a chart of the loss; None with fewer than two losses."""
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


def pipeline(run: Run) -> Html | None:
    """Return a section of the page with the times of each pipeline stage; None without stages."""
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


def _table(shown: Pipeline, length: float) -> Html:
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
    """Return a section of the page with the optimizer's values; None for inference."""
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
    """Return a sentence on the number of optimizer changes and the last change."""
    said = words.count(len(known.changes) + known.left_out, "change")
    last = known.changes[-1]
    left = f" {known.left_out:,} before the last are not kept." if known.left_out else ""
    return f"{said}, the last before call {last.calls + 1:,}: {_listed(last)}.{left}"


def _changes(known: Optimizer) -> Html:
    rows: list[list[Content]] = [[f"{e.calls + 1:,}", _listed(e)] for e in known.changes]
    return long_table(("from call", "values"), rows, numbers=(0,), most=_MOST)


def _listed(change: Change) -> str:
    return ", ".join(f"{name} {words.setting(value)}" for name, value in change.values.items())
