"""An answer as a short table."""

from __future__ import annotations

from abele.fit.estimate import Interval, Part
from abele.fit.limits import bytes_text
from abele.fit.verdict import Answer
from abele.report import words

_LINES = 8


def table(answer: Answer) -> str:
    """Format the verdict, the live memory at the peak, and the user's lines with the most bytes."""
    peak, work = answer.estimate.peak, answer.estimate.work
    parts = _by_role([*answer.beside, *peak.parts])
    rows = [_row(part) for part in sorted(parts, key=_order) if part.size.high]
    rows.append(("at the peak", *_sizes(answer.size), ""))
    head = ("what", "at least", "expected", "at most", "")
    lines = [
        answer.sentence(),
        f"A call computes {words.large(work.operations)}FLOP and moves {bytes_text(work.bytes)}.",
        "",
        f"Most is in use in {peak.name}: {peak.operation}.",
        "",
    ]
    lines += _aligned([head, *rows])
    lines += _by_line(answer)
    lines += ["", *(f"{name} runs {why}." for name, why in answer.estimate.lowerings.items())]
    return "\n".join(lines)


def _by_role(parts: list[Part]) -> list[Part]:
    """Join parts of equal role."""
    sizes: dict[tuple[str, bool], list[Interval]] = {}
    for part in parts:
        sizes.setdefault((part.role, part.always), []).append(part.size)
    return [
        Part(role=role, size=Interval.sum(several), always=always)
        for (role, always), several in sizes.items()
    ]


def _order(part: Part) -> tuple[bool, float]:
    return not part.always, -part.size.expected


def _row(part: Part) -> tuple[str, ...]:
    return part.role, *_sizes(part.size), "always" if part.always else ""


def _sizes(size: Interval) -> tuple[str, str, str]:
    return bytes_text(size.low), bytes_text(size.expected), bytes_text(size.high)


def _by_line(answer: Answer) -> list[str]:
    lines = answer.estimate.peak.by_line()
    if not lines:
        return []
    rows = [(bytes_text(size), line or "(no line)") for line, size in list(lines.items())[:_LINES]]
    width = max(len(size) for size, _ in rows)
    texts = [f"  {size:>{width}}  {line}" for size, line in rows]
    more = len(lines) - len(rows)
    return [
        "",
        "Lines that take most of it:",
        *texts,
        *([f"  and {more} more"] if more > 0 else []),
    ]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index in (0, len(row) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
