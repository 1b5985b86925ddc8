"""Stages of a pipeline: what each did when, and where it waited."""

from __future__ import annotations

from abele.report import record, words
from abele.report.page import charts
from abele.report.page.markup import Content, Html, section, table, tag

# Shares of the width from which on a task has room for its number: anywhere, and on wide screens.
_ROOM, _WIDE_ROOM = 0.06, 0.02


def pipeline(run: record.Run) -> Html | None:
    """Draw a row of tasks for each stage."""
    shown = run.pipeline
    if shown is None or not shown.tasks:
        return None
    length = max(each.end for each in shown.tasks)
    micro_batches = len({each.micro_batch for each in shown.tasks})
    trained = any(each.backward for each in shown.tasks)
    said = (
        f"In the latest call {words.count(micro_batches, 'micro-batch')} went through "
        f"{words.count(len(shown.stages), 'stage')} in {words.seconds(length)}. The bubble, the "
        f"share of time in which stages waited, was {shown.bubble:.0%}; with stages that take "
        f"equally long it would be {shown.ideal:.0%}."
    )
    entries = [("c1", "forward"), ("c6", "backward"), ("wait", "waiting")]
    legend = charts.legend([each for each in entries if trained or each[0] != "c6"])
    parts = tag("p", said), _gantt(shown, length), legend, _table(shown, length)
    return section("Pipeline", *parts, name="pipeline")


def _gantt(shown: record.Pipeline, length: float) -> Html:
    """Tasks as boxes with the numbers of their micro-batches, a row for each stage."""
    rows = [
        tag(
            "div",
            tag("span", f"{stage} {name}", class_="name"),
            tag(
                "div",
                [_box(each, length) for each in shown.tasks if each.stage == stage],
                class_="track",
            ),
        )
        for stage, name in enumerate(shown.stages)
    ]
    marks = [tag("span", words.seconds(length * quarter / 4)) for quarter in range(5)]
    axis = tag("div", tag("span"), tag("div", marks, class_="axis"))
    said = f"When each of {len(shown.stages)} stages worked, over {words.seconds(length)}"
    note = "numbers are those of micro-batches"
    top = tag("div", note, class_="top")
    return tag("figure", top, tag("div", rows, axis, class_="gantt", role="img", aria_label=said))


def _box(each: record.Task, length: float) -> Html:
    way = "backward" if each.backward else "forward"
    begin, share = each.begin / length, (each.end - each.begin) / length
    took = f"{words.seconds(each.begin)} to {words.seconds(each.end)}"
    number = str(each.micro_batch) if share >= _WIDE_ROOM else None
    return tag(
        "i",
        number if share >= _ROOM or number is None else tag("span", number),
        class_="c6" if each.backward else "c1",
        style=f"left:{100 * begin:.2f}%;width:{100 * share:.2f}%",
        title=f"stage {each.stage}: {way} of micro-batch {each.micro_batch}, {took}",
    )


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
