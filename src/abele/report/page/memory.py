"""Memory over each program, and the tensors that take it at the peak."""

from __future__ import annotations

from abele.report import record, words
from abele.report.page import charts
from abele.report.page.markup import Content, Html, by_program, path_of, section, table, tag

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


def memory(run: record.Run) -> Html:
    """Return a chart and a table for each program."""
    parts = [
        (each.name, _short(each), each.memory.peak, _of_program(each)) for each in run.programs
    ]
    note = (
        "Bytes of tensors. Below, what is there all the time; above, what the program makes and "
        "frees, at each of its steps: the pointer shows which operation, tensor, module and line."
    )
    return section(
        "Memory over the program", tag("p", note, class_="soft"), by_program(parts), name="memory"
    )


def _short(program: record.Program) -> str:
    given = sum(program.given.values())
    return f"{words.size(program.memory.peak)} at most beside {words.size(given)}"


def _of_program(program: record.Program) -> list[Content]:
    use = program.memory
    bands = _bands(program)
    level = sum(height for _, _, height in bands)
    reserved = f", {words.size(use.reserved)} of it kept between calls" if use.reserved else ""
    alive = max((size for _, size, _ in use.curve), default=0)
    if use.reserved and alive < use.peak:  # what is kept also has room for other steps
        reserved += f"; tensors fill {words.size(alive)} of it at most"
    said = tag(
        "p",
        f"{words.size(use.peak)} at most beside {words.size(level)} that it is given{reserved}; "
        f"the most at step {use.peak_step + 1} of {use.steps}. "
        f"Basis: {use.basis}.",
    )
    return [said, _picture(use, bands, level), _largest(use)]


def _bands(program: record.Program) -> list[tuple[str, str, float]]:
    """Class, words and bytes of what is there all the time."""
    roles = sorted(program.given, key=lambda role: [*_BANDS, role].index(role))
    return [
        (_BANDS.get(role, _OTHER), f"{_name(role)}: {words.size(program.given[role])}", size)
        for role in roles
        if (size := float(program.given[role]))
    ]


def _name(role: str) -> str:
    return {"input": "inputs of a micro-batch"}.get(role, role.replace("_", " "))


def _picture(use: record.Memory, bands: list[tuple[str, str, float]], level: float) -> Html:
    steps = max(1, use.steps)
    kinds = {name: sizes for name, sizes in use.kinds.items() if any(sizes)}
    if not kinds:  # of an older file
        kinds = {"not always there": tuple(size for _, size, _ in use.curve)}
    points = [
        (at / steps * charts.WIDTH, float(size), _at(at, size, what, kinds, index))
        for index, (at, size, what) in enumerate(use.curve)
    ]
    highest = max((size for _, size, _ in use.curve), default=0)
    top = level + max(highest, 1)
    begins = ", ".join(f"{phase} from step {at + 1}" for phase, at in use.phases.items())
    stacks = [(_KINDS.get(name, "m1"), sizes) for name, sizes in kinds.items()]
    picture = charts.frame(
        charts.stacked(bands, points, stacks, top),
        top=words.size(top),
        left=begins or "first step",
        right=f"step {use.steps}",
        title=f"Bytes in use at each step; at most {words.size(top)}",
    )
    entries = [(name, said) for name, said, _ in bands]
    entries += [
        (_KINDS.get(name, "m1"), f"{name}: up to {words.size(max(sizes))}")
        for name, sizes in kinds.items()
    ]
    return tag("div", picture, charts.legend(entries))


def _at(at: int, size: int, what: str, kinds: dict[str, tuple[int, ...]], index: int) -> str:
    """Describe a step: bytes by kind, and the operator."""
    parts = [f"{words.size(sizes[index])} {name}" for name, sizes in kinds.items() if sizes[index]]
    several = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"step {at + 1}: {words.size(size)}{several}" + (f" · {what}" if what else "")


def _largest(use: record.Memory) -> Html:
    whole = sum(each.bytes for each in use.largest) + use.others
    top = max((each.bytes for each in use.largest), default=1)
    rows: list[list[Content]] = [
        [
            words.size(each.bytes),
            charts.part(each.bytes / top, "move"),
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
        rows.append([words.size(use.others), "", "all others", "", "", "", ""])
    heads = ("bytes", "", "made by", "type", "module", "line", "steps")
    title = tag("p", f"The largest of {words.size(whole)} there at the peak:")
    return tag("div", title, table(heads, rows, numbers=(0, 6))) if rows else tag("div")
