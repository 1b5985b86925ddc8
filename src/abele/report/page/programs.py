"""Sections of a run's page on programs: lowerings, passes, operators, modules and memory."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from abele.report import words
from abele.report.journal import Journal
from abele.report.page import markup
from abele.report.page.markup import (
    Content,
    Html,
    by_program,
    folded,
    long_table,
    path_of,
    section,
    table,
    tag,
)
from abele.report.record import Choice, Limits, Memory, Program, Run, Timing
from abele.report.status import DISTURBED, Entry, by_operator, slower

#: The page shows so much of each program's text; ``run.json`` has more.
TEXT = 120_000
_MOST, _MOST_KERNELS = 30, 60


def lowerings(run: Run) -> Html:
    """Return a section of the page on lowerings and backends of programs, with reasons."""
    rows: list[list[Content]] = [
        [tag("code", each.name), each.lowering, _why(each)] for each in run.programs
    ]
    parts = [(each.name, _kinds(each), _uses(each), _computers(each)) for each in run.programs]
    first = table(("program", "lowering", "why"), rows)
    return section("Who computes what, and why", first, by_program(parts), name="lowerings")


def _uses(program: Program) -> int:
    return sum(each.count for each in program.choices)


def _kinds(program: Program) -> str:
    kinds = dict.fromkeys(each.by for each in program.choices)
    return f"{words.count(_uses(program), 'operation')} by {', '.join(kinds)}" if kinds else ""


def _why(program: Program) -> list[Content]:
    """Return the reason for a program's lowering, and the reasons against preferred lowerings."""
    declined = [f"By rule not {name}: {reason}." for name, reason in program.declined.items()]
    return [tag("div", each, class_="why") for each in (f"{program.reason}.", *declined)]


def _computers(program: Program) -> Html:
    """Return an HTML table of backends and reasons with their operators, the most used first."""
    groups: dict[tuple[str, str], list[Choice]] = {}
    for each in program.choices:
        groups.setdefault((each.by, each.why), []).append(each)
    rows = [
        (sum(each.count for each in group), by, why, group) for (by, why), group in groups.items()
    ]
    cells: list[list[Content]] = [
        [
            f"{count:,}",
            tag("b", by),
            tag("div", why, class_="why"),
            tag("div", _listed(group), class_="list"),
        ]
        for count, by, why, group in sorted(rows, key=lambda row: -row[0])
    ]
    heads = ("uses", "computed by", "why", "operators")
    return long_table(heads, cells, numbers=(0,), most=_MOST)


def _listed(group: list[Choice]) -> str:
    """Format operators with their phases, and counts above one."""
    counts: dict[str, list[str]] = {}
    for each in group:
        often = f"{each.phase}\u00a0x\u00a0{each.count:,}" if each.count > 1 else each.phase
        counts.setdefault(each.operator, []).append(often)
    return ", ".join(f"{name} ({', '.join(phases)})" for name, phases in counts.items())


def passes(run: Run) -> Html:
    """Return a section of the page with compiler passes and the text of each final program."""
    parts: list[tuple[str, str, float, Content]] = []
    for program in run.programs:
        text = folded("The program after all passes", tag("pre", _cut(program.text)))
        content: list[Content] = [_stamps(program), text]
        nodes = program.history[-1].nodes if program.history else 0
        parts.append((program.name, words.count(nodes, "node"), nodes, content))
    return section("Programs", by_program(parts), name="programs")


def _stamps(program: Program) -> Html | None:
    """Return an HTML table of the time and the number of nodes of each compiler pass."""
    if not program.history:
        return None
    first, last = program.history[0], program.history[-1]
    rows: list[list[Content]] = [
        [tag("code", stamp.by), words.seconds(stamp.seconds), f"{stamp.nodes:,}"]
        for stamp in program.history
    ]
    took = words.seconds(sum(stamp.seconds for stamp in program.history))
    said = (
        f"All {len(rows)} steps that made it, in {took}: "
        f"{words.count(first.nodes, 'node')} after {first.by}, {last.nodes:,} at the end"
    )
    return folded(said, table(("pass", "took", "nodes after it"), rows, numbers=(1, 2)))


def _cut(text: str) -> str:
    if len(text) <= TEXT:
        return text
    return f"{text[:TEXT]}\n# {len(text) - TEXT:,} characters more are in run.json"


def options(run: Run) -> Html | None:
    """Return a section of the page with the options that the user set, and their effects."""
    if not run.options:
        return None
    rows: list[list[Content]] = [
        [tag("code", each.name), tag("code", each.value, class_="value"), each.status, each.note]
        for each in run.options
    ]
    return section(
        "Options", table(("option", "value", "status", "what it does"), rows), name="options"
    )


def operators(run: Run, journal: Journal) -> Html:
    """Return a section of the page with each program's operators, by time or else by bytes."""
    parts: list[tuple[str, str, float, Content]] = []
    for program in run.programs:
        moved = sum(each.bytes for each in program.operators)
        total = words.count(sum(each.count for each in program.operators), "operation")
        said, content = f"{total}, {words.size(moved)}", [_operators(program)]
        if program.timing is not None:
            said += f", {words.seconds(program.timing.seconds)} a run"
            content = [_timed(program.timing), *content, _longest(program.timing)]
        parts.append((program.name, said, moved, content))
    return section("Operators", _notes(run, journal), by_program(parts), name="operators")


def _notes(run: Run, journal: Journal) -> list[Html]:
    text = (
        "Operations are those of convolutions, matrix products and attention. Bytes are of the "
        "tensors that an operator reads and makes, the least that it could move if nothing were "
        "joined; views move none. The next section has the reasons for who computes each."
    )
    untimed = [f"{each.name} was not timed: {each.untimed}." for each in run.programs
               if each.timing is None and each.untimed]  # fmt: skip
    if any(each.timing for each in run.programs):
        text += _note_of_times(run.limits)
    elif journal.end is not None and not untimed:
        text += " How long each takes was not measured; report(path, measure=True) does so."
    notes = [tag("p", text, class_="soft"), *(tag("p", each) for each in untimed)]
    times = slower(run, journal)
    if times >= DISTURBED:
        said = (
            f"These runs took {times:,.0f} times as long as the program's calls did, so the "
            "machine was busy with something else, and the times say little."
        )
        notes.append(tag("p", tag("b", said, class_="worse")))
    return notes


def _note_of_times(limits: Limits | None) -> str:
    text = (
        " Times were measured in runs of their own, on tensors of their own: with a look at the "
        "clock between kernels, and in turns without. These runs are no calls, and none of their "
        "times is among those of calls."
    )
    if limits is not None:
        rates = [f"{rate / 1e9:.0f} GB/s at {words.size(size)}" for size, rate in limits.bandwidths]
        threads = words.count(limits.threads, "thread")
        text += (
            f" The limit is what this machine did with {threads}: "
            f"{words.large(limits.operations)}FLOP/s in a product of matrices, and "
            f"{', '.join(rates)} in a sum of vectors."
        )
    return text


def _timed(timing: Timing) -> Html:
    said = (
        f"A run takes {words.seconds(timing.seconds)}. With clocks it took "
        f"{words.seconds(timing.clocked)}: {words.seconds(timing.attributed)} in kernels, "
        f"{words.seconds(timing.unattributed)} ({words.share(timing.unattributed, timing.whole)}) "
        f"between them, {words.seconds(timing.clocks)} for the clocks. "
        f"Means of {words.count(timing.runs, 'run')}, the fastest quarter."
    )
    return tag("p", said)


def _operators(program: Program) -> Html:
    timing = program.timing
    chosen: dict[tuple[str, str], list[Choice]] = defaultdict(list)
    for choice in program.choices:
        chosen[choice.phase, choice.operator].append(choice)
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in program.operators:
        entry = sums[each.phase, each.name]
        for index, value in enumerate((each.count, each.operations, each.bytes)):
            entry[index] += value
    times = {} if timing is None else dict(by_operator(timing))
    weights = {
        key: float(sums[key][2]) if timing is None else times.get(key, Entry()).seconds
        for key in sums.keys() | times.keys()
    }
    whole = sum(weights.values()) if timing is None else timing.whole
    rows: list[list[Content]] = []
    for key in sorted(weights, key=lambda key: (-weights[key], -sums[key][2], key)):
        (phase, name), (count, work, moved) = key, sums[key]
        cells: list[Content] = [
            tag("code", name),
            phase,
            f"{count:,}",
            words.share(weights[key], whole),
            words.size(moved),
            f"{words.large(work)}FLOP" if work else "",
            _who(chosen[key]),
        ]
        if timing is not None:
            entry = times.get(key, Entry())
            limit = distance(entry.seconds, entry.least) if entry.seconds else ""
            cells[3:3] = words.seconds(entry.seconds), limit
        rows.append(cells)
    of_time = () if timing is None else ("time", "limit")
    heads = ("operator", "phase", "uses", *of_time, "share", "bytes", "operations")
    numbers = range(2, len(heads))
    return long_table((*heads, "computed by"), rows, numbers=numbers, most=_MOST)


def _who(choices: list[Choice]) -> str:
    """Format the backend of an operator, with counts if it has several."""
    counts: Counter[str] = Counter()
    for each in choices:
        counts[each.by] += each.count
    if len(counts) == 1:
        return next(iter(counts))
    # What belongs together stays on one line.
    return ", ".join(f"{by}\u00a0x\u00a0{count:,}" for by, count in counts.most_common())


def distance(seconds: float, least: float) -> str:
    """Format a kernel's time as a multiple of the machine's least time; empty if unknown."""
    if not least or seconds / least >= 1000:
        return "" if not least else "> 1,000 x"
    return "at it" if seconds <= 1.05 * least else f"{seconds / least:.1f} x"


def _longest(timing: Timing) -> Html:
    longest = sorted(timing.kernels, key=lambda each: -each.seconds)[:_MOST_KERNELS]
    rows: list[list[Content]] = [
        [
            words.seconds(each.seconds),
            words.share(each.seconds, timing.whole),
            tag("code", each.what),
            tag("code", _joined([name for name, _ in each.operators]), class_="value"),
            path_of(each.module),
            tag("span", each.line, class_="at"),
            f"{words.large(each.operations / each.seconds)}FLOP/s" if each.operations else "",
            f"{each.bytes / each.seconds / 1e9:.1f} GB/s" if each.bytes else "",
            distance(each.seconds, each.least),
        ]
        for each in longest
        if each.seconds
    ]
    heads = ("time", "share", "kernel", "computes", "module", "line", "work", "memory", "limit")
    title = f"The {len(rows)} longest of {words.count(len(timing.kernels), 'kernel')}"
    return folded(title, table(heads, rows, numbers=(0, 1, 6, 7, 8)))


def _joined(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# Classes of the kinds of state, from the bottom of the picture.
_BANDS = {
    "parameter": "c1",
    "buffer": "c3",
    "optimizer_state": "c2",
    "accumulator": "c4",
    "input": "c6",
}
_OTHER = "c5"
# And of the kinds of what is not always there.
_KINDS = {
    "activations for backward": "m1",
    "gradients": "m2",
    "new values": "m3",
    "while operators run": "m4",
}


def memory(run: Run) -> Html:
    """Return a section of the page with a memory chart and table for each program."""
    parts = [(each.name, _short(each), each.memory.peak, _memory_of(each)) for each in run.programs]
    note = (
        "Bytes of tensors. Below, what is there all the time; above, what the program makes and "
        "frees, at each of its steps."
    )
    return section(
        "Memory over the program", tag("p", note, class_="soft"), by_program(parts), name="memory"
    )


def _short(program: Program) -> str:
    given = sum(program.given.values())
    return f"{words.size(program.memory.peak)} at most beside {words.size(given)}"


def _memory_of(program: Program) -> list[Content]:
    use = program.memory
    bands = _bands(program)
    level = sum(height for _, _, height in bands)
    reserved = f", {words.size(use.reserved)} of it kept between calls" if use.reserved else ""
    alive = max((size for _, size in use.live), default=0)
    if use.reserved and alive < use.peak:  # what is kept also has room for other steps
        reserved += f"; tensors fill {words.size(alive)} of it at most"
    said = tag(
        "p",
        f"{words.size(use.peak)} at most beside {words.size(level)} that it is given{reserved}; "
        f"the most at step {use.peak_step + 1} of {use.steps}. "
        f"Basis: {use.basis}.",
    )
    return [said, _picture(use, bands, level), _largest(use)]


def _bands(program: Program) -> list[tuple[str, str, float]]:
    """Return CSS class, label and bytes of a program's inputs and state, by role."""
    roles = sorted(program.given, key=lambda role: [*_BANDS, role].index(role))
    return [
        (_BANDS.get(role, _OTHER), f"{_name(role)}: {words.size(program.given[role])}", size)
        for role in roles
        if (size := float(program.given[role]))
    ]


def _name(role: str) -> str:
    return {"input": "inputs of a micro-batch"}.get(role, role.replace("_", " "))


def _picture(use: Memory, bands: list[tuple[str, str, float]], level: float) -> Html:
    steps = max(1, use.steps)
    kinds = {name: sizes for name, sizes in use.kinds.items() if any(sizes)}
    begins = [at / steps * markup.WIDTH for at, _ in use.live]
    highest = max((size for _, size in use.live), default=0)
    top = level + max(highest, 1)
    phases = ", ".join(f"{phase} from step {at + 1}" for phase, at in use.phases.items())
    stacks = [(_KINDS[name], sizes) for name, sizes in kinds.items()]
    picture = markup.frame(
        markup.stacked(bands, begins, stacks, top),
        top=words.size(top),
        left=phases or "first step",
        right=f"step {use.steps}",
        title=f"Bytes in use at each step; at most {words.size(top)}",
    )
    entries = [(name, said) for name, said, _ in bands]
    entries += [
        (_KINDS[name], f"{name}: up to {words.size(max(sizes))}") for name, sizes in kinds.items()
    ]
    return tag("div", picture, markup.legend(entries))


def _largest(use: Memory) -> Html:
    whole = sum(each.bytes for each in use.largest) + use.others
    rows: list[list[Content]] = [
        [
            words.size(each.bytes),
            tag("code", each.operator or "?"),
            tag("code", each.type),
            path_of(each.module),
            tag("span", each.line, class_="at"),
            f"{each.first + 1} to {each.last + 1}",
        ]
        for each in use.largest
        if each.bytes
    ]
    if use.others:
        rows.append([words.size(use.others), "all others", "", "", "", ""])
    heads = ("bytes", "made by", "type", "module", "line", "steps")
    title = tag("p", f"The largest of {words.size(whole)} there at the peak:")
    return tag("div", title, table(heads, rows, numbers=(0, 5))) if rows else tag("div")


_OUTSIDE = "outside of all modules"


def modules(run: Run) -> Html | None:
    """Return a section of the page with the cost of each module; None without modules."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for program in run.programs:
        for each in program.operators:
            _add(sums, each.module, (0.0, each.bytes, each.operations, each.count))
        for kernel in program.timing.kernels if program.timing is not None else ():
            _add(sums, kernel.module, (kernel.seconds, 0, 0, 0))
    whole = sums.pop("")
    if not sums.keys() - {_OUTSIDE}:
        return None
    rows: list[list[Content]] = [
        [
            path_of(module),
            *((words.seconds(took), words.share(took, whole[0])) if whole[0] else ()),
            words.size(moved),
            words.share(moved, whole[1]),
            f"{words.large(work)}FLOP" if work else "",
            f"{count:,.0f}",
        ]
        for module, (took, moved, work, count) in sorted(sums.items())
    ]
    of_time = ("time", "share") if whole[0] else ()
    heads = ("module", *of_time, "bytes", "share", "work", "operations")
    note = tag("p", "A module counts with all modules inside it.", class_="soft")
    shown = long_table(heads, rows, numbers=range(1, len(heads)), most=_MOST)
    return section("Modules", note, shown, name="modules")


def _add(sums: dict[str, list[float]], module: str, values: Sequence[float]) -> None:
    """Add the costs of an operator to the sums of its module, all outer modules, and the total."""
    names = [name for name in module.split("/") if name] or [_OUTSIDE]
    for path in ("", *itertools.accumulate(names, "{}/{}".format)):
        sums[path] = [a + b for a, b in zip(sums[path], values, strict=True)]
