"""Memory over each program, and the tensors that take it at the peak."""

from __future__ import annotations

from abele.report import record, words
from abele.report.page import charts
from abele.report.page.markup import Content, Html, path_of, section, table, tag

# Classes of the kinds of state, from the bottom of the picture.
_BANDS = {
    "parameter": "c1",
    "buffer": "c3",
    "optimizer_state": "c2",
    "accumulator": "c4",
    "input": "c6",
}
_OTHER = "c5"


def memory(run: record.Run) -> Html:
    """A picture and a table for each program."""
    parts: list[Content] = []
    for program in run.programs:
        parts += [tag("h3", tag("code", program.name)), *_of_program(program)]
    note = (
        "Bytes of tensors. Below, what is there all the time; above, what the program makes and "
        "frees, at each of its steps."
    )
    return section("Memory over the program", tag("p", note, class_="soft"), parts, name="memory")


def _of_program(program: record.Program) -> list[Content]:
    use = program.memory
    bands = _bands(program)
    level = sum(height for _, _, height in bands)
    reserved = f", {words.size(use.reserved)} of it kept between calls" if use.reserved else ""
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
    points = [
        (at / steps * charts.WIDTH, float(size), f"step {at + 1}: {words.size(size)} · {what}")
        for at, size, what in use.curve
    ]
    highest = max((size for _, size, _ in use.curve), default=0)
    top = level + max(highest, 1)
    begins = ", ".join(f"{phase} from step {at + 1}" for phase, at in use.phases.items())
    picture = charts.frame(
        charts.stacked(bands, points, top),
        top=words.size(top),
        left=begins or "first step",
        right=f"step {use.steps}",
        title=f"Bytes in use at each step; at most {words.size(top)}",
    )
    entries = [(name, said) for name, said, _ in bands]
    return tag("div", picture, charts.legend([*entries, ("moving", "not always there")]))


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
            each.line,
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
