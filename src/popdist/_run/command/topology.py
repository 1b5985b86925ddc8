"""The table "poprun topology": hosts, IPU-link domains, instances and replicas."""

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby

from popdist._run.placement.plan import Instance, Plan

_WIDTH = 100
_TITLE = "poprun topology"
_ROWS = ("hosts", "ILDs", "instances", "replicas")


def table(plan: Plan) -> str:
    """Return the table: columns that stand for what they hold, or rows of hosts where too wide."""
    for folded in (False, True):
        text = _columns(plan, folded)
        if len(text.split("\n", 1)[0]) < _WIDTH:
            return text
    return _by_host(plan)


def _columns(plan: Plan, folded: bool) -> str:
    """Return one column per instance, as wide as its replicas need."""
    replicas = [_replicas(instance, folded) for instance in plan.instances]
    keys: tuple[Callable[[Instance], Hashable], ...] = (
        lambda i: i.host,
        lambda i: (i.host, i.domain),
        lambda i: i.rank,
    )
    names = [_spans(plan, key) for key in keys]
    widths = [
        max(sum(map(len, cells)) + 3 * len(cells) - 1, len(str(instance.rank)) + 2)
        for instance, cells in zip(plan.instances, replicas, strict=True)
    ]
    _widen(widths, names[0])
    rows = [_cells(widths, spans) for spans in names[:3]]
    rows.append("|".join(_spread(cells, w) for cells, w in zip(replicas, widths, strict=True)))
    lines = [f"| {name:<9} |{row}|" for name, row in zip(_ROWS, rows, strict=True)]
    inner = len(lines[0]) - 2
    rule = "|" + "-" * 11 + "|" + "-" * (inner - 12) + "|"
    head = [" " + "=" * inner, f"|{_TITLE:^{inner}}|", "|" + "=" * inner + "|"]
    body = [part for line in lines for part in (line, rule)][:-1]
    return "\n".join([*head, *body, " " + "-" * inner])


def _replicas(instance: Instance, folded: bool) -> list[str]:
    numbers = range(instance.offset, instance.offset + instance.replicas)
    return [_range(numbers)] if folded else [str(number) for number in numbers]


def _spans(plan: Plan, key: Callable[[Instance], Hashable]) -> list[tuple[str, int]]:
    """Return labels, and how many columns each covers."""
    spans = [(value, len(list(group))) for value, group in groupby(plan.instances, key)]
    return [(str(v[1] if isinstance(v, tuple) else v), count) for v, count in spans]


def _widen(widths: list[int], hosts: Sequence[tuple[str, int]]) -> None:
    """Give the columns of a host, evenly, what its name lacks."""
    start = 0
    for name, count in hosts:
        inner = sum(widths[start : start + count]) + count - 1
        each, more = divmod(max(0, len(name) + 2 - inner), count)
        for n in range(count):
            widths[start + n] += each + (n < more)
        start += count


def _cells(widths: Sequence[int], spans: Sequence[tuple[str, int]]) -> str:
    parts, start = [], 0
    for label, count in spans:
        parts.append(f"{label:^{sum(widths[start : start + count]) + count - 1}}")
        start += count
    return "|".join(parts)


def _spread(cells: Sequence[str], width: int) -> str:
    each, more = divmod(width - (len(cells) - 1), len(cells))
    return "|".join(f"{cell:^{each + (n < more)}}" for n, cell in enumerate(cells))


def _by_host(plan: Plan) -> str:
    rows: list[tuple[str, ...]] = [_ROWS]
    for host, group in groupby(plan.instances, lambda instance: instance.host):
        instances = list(group)
        last = instances[-1]
        rows.append((
            host,
            _range(range(instances[0].domain, last.domain + 1)),
            _range(range(instances[0].rank, last.rank + 1)),
            _range(range(instances[0].offset, last.offset + last.replicas)),
        ))  # fmt: skip
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([_TITLE, "=" * len(lines[0]), *(line.rstrip() for line in lines)])


def _range(numbers: range) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
