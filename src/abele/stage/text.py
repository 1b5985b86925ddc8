"""A plan as people read it: a sentence, a row per device, a picture."""

from __future__ import annotations

from abele.fit.estimate import Verdict
from abele.fit.limits import bytes_text, shown
from abele.report import words
from abele.stage.plan import Load, Plan

_ANSWERS = {
    Verdict.FITS: "It fits into",
    Verdict.UNCERTAIN: "It is uncertain whether it fits into",
    Verdict.DOES_NOT_FIT: "It does not fit into",
}


def sentence(plan: Plan) -> str:
    """Return the verdict in a sentence."""
    count = len(plan.loads)
    memory = shown(plan.limit.name, plan.device.size)
    place = memory if count == 1 else f"{count} times {memory}"
    fullest = plan.fullest
    size = f"{bytes_text(fullest.size.low)} to {bytes_text(fullest.size.high)}"
    where = "it" if count == 1 else f"device {fullest.device}, the fullest,"
    return f"{_ANSWERS[plan.verdict]} {place}: {where} needs {size}."


def table(plan: Plan) -> str:
    """Rows of devices: their stages, time, waiting and memory."""
    head = ("device", "stage", "begins at", _time_head(plan), "waits")
    rows: list[tuple[str, ...]] = [(*head, "at least", "expected", "at most", "")]
    for load, waits in zip(plan.loads, plan.pace.waits, strict=True):
        for position, stage in enumerate(load.stages):
            time = plan.times[stage]
            row = (
                str(load.device) if not position else "",
                str(stage),
                plan.names[stage] or "(the model)",
                _time(plan, time.forward + time.backward),
            )
            rows.append((*row, *(_of_load(load, waits) if not position else ("",) * 5)))
    return "\n".join(words.aligned(rows, left=(2, 8)))


def memory_table(plan: Plan) -> str:
    """Format the memory of the fullest device."""
    fullest = plan.fullest
    rows: list[tuple[str, ...]] = [
        (f"device {fullest.device}", "at least", "expected", "at most", "")
    ]
    for part in sorted(fullest.parts, key=lambda part: -part.size.expected):
        sizes = (part.size.low, part.size.expected, part.size.high)
        rows.append((part.role, *map(bytes_text, sizes), "always" if part.always else ""))
    return "\n".join(words.aligned(rows, left=(0, 4)))


def bubbles(plan: Plan) -> str:
    """Describe the idle time of devices in a sentence, and draw the first micro-batches."""
    if plan.stages == 1:
        return "One stage: nothing waits."
    pace, needed = plan.pace, plan.needed_micro_batches
    of = max(plan.micro_batches, needed)
    unit = "an update" if plan.chain.training else "a call"
    kind = "measured" if plan.measured else "modelled"
    return (
        f"With {of} micro-batches in {unit}, devices wait {pace.bubble:.0%} of the time "
        f"({kind}). A digit is a forward, a letter a backward:\n{pace.picture}"
    )


def _time_head(plan: Plan) -> str:
    return "ms" if plan.measured else "time"


def _time(plan: Plan, time: float) -> str:
    if plan.measured:
        return f"{1000 * time:.3f}"
    work = sum(each.forward + each.backward for each in plan.times) or 1.0
    return f"{time / work:.1%}"


def _of_load(load: Load, waits: float) -> tuple[str, ...]:
    sizes = map(bytes_text, (load.size.low, load.size.expected, load.size.high))
    return (f"{waits:.0%}", *sizes, load.verdict.value)
