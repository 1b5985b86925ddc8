"""Stages of a pipeline: what each did when, and where it waited."""

from __future__ import annotations

from abele.report import record, words
from abele.report.page import charts
from abele.report.page.markup import Content, Html, section, table, tag

_ROW, _GAP = 30.0, 6.0


def pipeline(run: record.Run) -> Html | None:
    """A row of tasks for each stage."""
    shown = run.pipeline
    if shown is None or not shown.tasks:
        return None
    length = max(each.end for each in shown.tasks)
    micro_batches = len({each.micro_batch for each in shown.tasks})
    said = (
        f"One passage of {words.count(micro_batches, 'micro-batch')} took "
        f"{words.seconds(length)}. Stages waited {shown.bubble:.0%} of the time; stages that take "
        f"equally long would wait {shown.ideal:.0%}."
    )
    entries = [("c1", "forward"), ("c2", "backward"), ("wait", "waiting")]
    picture = _gantt(shown, length)
    return section(
        "Pipeline", tag("p", said), picture, charts.legend(entries), _table(shown, length),
        name="pipeline",
    )  # fmt: skip


def _gantt(shown: record.Pipeline, length: float) -> Html:
    count = len(shown.stages)
    scale = charts.HEIGHT / (count * (_ROW + _GAP))
    shapes: list[Content] = []
    for stage in range(count):
        shapes.append(_box("wait", 0, 1, stage, scale, f"stage {stage}: waiting"))
    for each in shown.tasks:
        way = "backward" if each.backward else "forward"
        took = words.seconds(each.end - each.begin)
        title = f"stage {each.stage}: {way} of micro-batch {each.micro_batch}, {took}"
        begin, end = each.begin / length, each.end / length
        shapes.append(
            _box("c2" if each.backward else "c1", begin, end, each.stage, scale, title, edge=True)
        )
    return charts.frame(
        shapes,
        top=f"stage 0 at the top, stage {count - 1} at the bottom",
        left="0",
        right=words.seconds(length),
        title=f"Tasks of {count} stages over {words.seconds(length)}",
        height=max(4, 2 * count),
    )


def _box(
    kind: str, begin: float, end: float, stage: int, scale: float, title: str, edge: bool = False
) -> Html:
    gap = 0.6 if edge else 0.0  # neighbours stay apart
    return tag(
        "rect",
        tag("title", title),
        class_=kind,
        x=f"{begin * charts.WIDTH:.2f}",
        y=f"{stage * (_ROW + _GAP) * scale:.2f}",
        width=f"{max(0.5, (end - begin) * charts.WIDTH - gap):.2f}",
        height=f"{_ROW * scale:.2f}",
    )


def _table(shown: record.Pipeline, length: float) -> Html:
    rows: list[list[Content]] = []
    for stage, name in enumerate(shown.stages):
        times = [0.0, 0.0]
        for each in shown.tasks:
            if each.stage == stage:
                times[each.backward] += each.end - each.begin
        waited = max(0.0, length - sum(times))
        cells = [words.seconds(each) for each in (*times, waited)]
        rows.append([str(stage), name, *cells, words.share(waited, length)])
    heads = ("stage", "blocks", "forward", "backward", "waited", "share")
    return table(heads, rows, numbers=(0, 2, 3, 4, 5))
