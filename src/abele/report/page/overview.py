"""The beginning of a page: the verdict in a sentence, what went wrong, and what proves it."""

from __future__ import annotations

import math

from abele.report import words
from abele.report.journal import Journal, Moment
from abele.report.page.markup import Html, facts, html, section, tag
from abele.report.record import Build, Run
from abele.report.status import State, Status, steady

SCATTERED = 2.0
_AWAITED = " until compiled ones are ready"  # in ``compile.executable.Running.sentence()``
_UNCALLED = (
    "Nothing was compiled, and nothing ran on a device: the program made a wrapper of this model "
    "and never called it."
)
_COLOURS = {State.FINISHED: "good", State.RUNNING: "good"}


def verdict(run: Run, journal: Journal, status: Status) -> Html:
    """Describe the course of the run in a sentence or two."""
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
    fallback = "" if run.build is None or not run.build.fallback else _fallback(run.build)
    warnings = ["" if begun else _UNCALLED, run.host_said if run.host_steps else "", fallback]
    shown = [tag("p", tag("b", each, class_="bad"), class_="lead") for each in warnings if each]
    return html(tag("p", said, class_="lead"), shown)


def _fallback(build: Build) -> str:
    """Return why the run used another target than the fastest; empty if it did not."""
    return f"It ran on the slower target {build.target}: {build.fallback}".partition(". ")[0] + "."


def _running(build: Build, journal: Journal) -> str:
    """Return which programs ran, and which are still being compiled."""
    now, awaits, _ = build.running.partition(_AWAITED)
    if not awaits or journal.end is None:
        return build.running
    return f"{now}; compiled ones were not ready when the run ended"


def _bound(run: Run) -> str:
    """Return the bottleneck of the loop over a loader, as at the end of the process."""
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
    """Return a box for each error, first the one that ended the run."""
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
    """Group each error with earlier ones whose text it contains.

    One that passes a call is noted there, again where it ends the program, and perhaps as the
    cause of another. The last in each group says most.
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
    """Return a section of target, lowering, executable, calls, and steps on the host."""
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
    """Return what a call does, in words."""
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
    """Return how many micro-batches a call of this process runs, those of its replicas included."""
    names = "device_iterations", "gradient_accumulation", "replicas"
    return math.prod(configuration.get(name, 1) for name in names)
