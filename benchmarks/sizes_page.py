"""Table and picture of ``benchmarks/notes/sizes.md``, from a record of ``sizes.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

NOTES = Path(__file__).resolve().parent / "notes"
BEGIN, END = "<!-- written by benchmarks/sizes.py -->", "<!-- end of what it writes -->"
WAYS = {"abele": ("#0072B2", "o"), "eager": ("#D55E00", "s")}
LIMITS = {"arithmetic": "--", "memory": ":", "call": "-."}


def renew(result: dict[str, Any], record: str) -> None:
    """Replace the numbers of the page and draw the picture anew."""
    page = NOTES / "sizes.md"
    link = f"From [`{record}`](../records/{record}), {result['environment']['cpu']}:"
    body = "\n".join([BEGIN, link, "", *lines(result), END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    page.write_text(pattern.sub(lambda _: body, page.read_text()))
    draw(result, NOTES / "sizes.svg")


def lines(result: dict[str, Any]) -> list[str]:
    """Return the result for people, line by line."""
    said = []
    for part in result["parts"]:
        limit = part["limits"]
        byte_rates = [rate / 1e9 for rate in limit["byte_per_s"].values()]
        said.append(
            f"- {_threads(part)}: {limit['flop_per_s'] / 1e9:.0f} GFLOP/s in products of 1024 x "
            f"1024, {min(byte_rates):.0f} to {max(byte_rates):.0f} GB/s in additions, "
            f"{1e6 * limit['call_s']:.0f} microseconds for a step of next to nothing"
        )
    said += [
        "",
        "| threads | batch | width | abele, steps/s | over eager | nearest limit | of it |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in result["parts"]:
        said += [_row(part, point) for point in part["points"]]
    return said


def nearest(point: dict[str, Any]) -> tuple[str, float]:
    """Return the lowest of the limits of a point and its steps/s."""
    name = min(point["bounds"], key=point["bounds"].__getitem__)
    return name, point["bounds"][name]


def _row(part: dict[str, Any], point: dict[str, Any]) -> str:
    rate = {way: point["step_per_s"][way]["median"] for way in WAYS}
    name, bound = nearest(point)
    cells = (
        part["threads"], point["batch"], point["width"], f"{rate['abele']:,.0f}",
        f"{rate['abele'] / rate['eager']:.2f} x", name, f"{rate['abele'] / bound:.0%}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _threads(part: dict[str, Any]) -> str:
    return f"{part['threads']} thread{'s' * (part['threads'] > 1)}"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw rates against batch and width, a row for each number of threads."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: Any = {"svg.hashsalt": "sizes", "svg.fonttype": "none", "font.size": 10}
    with mpl.rc_context(settings):
        parts = result["parts"]
        figure = Figure(figsize=(11, 4 * len(parts)), layout="constrained")
        axes = figure.subplots(len(parts), 2, squeeze=False, sharey=True)
        for row, part in zip(axes, parts, strict=True):
            for axis, (key, other) in zip(
                row, (("batch", "width"), ("width", "batch")), strict=True
            ):
                _panel(axis, part, key, other)
        axes[0][0].legend(loc="lower left", fontsize=9)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=100)
    if path.suffix == ".svg":
        text = path.read_text()
        path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def _panel(axis: Any, part: dict[str, Any], key: str, other: str) -> None:
    values = [point[other] for point in part["points"]]
    fixed = max(set(values), key=values.count)
    points = sorted((p for p in part["points"] if p[other] == fixed), key=lambda p: p[key])
    x = [point[key] for point in points]
    for name, style in LIMITS.items():
        axis.plot(
            x, [p["bounds"][name] for p in points], style, color="#777777", label=f"limit: {name}"
        )
    for way, (colour, marker) in WAYS.items():
        rates = [p["step_per_s"][way] for p in points]
        axis.plot(x, [r["median"] for r in rates], marker=marker, color=colour, label=way)
        axis.fill_between(
            x,
            [r["lowest"] for r in rates],
            [r["highest"] for r in rates],
            color=colour,
            alpha=0.2,
            lw=0,
        )
    top = 3 * points[0]["bounds"]["call"]
    axis.set(xscale="log", yscale="log", ylim=(None, top), xlabel=key, ylabel="steps/s")
    axis.set_xticks(x, [str(each) for each in x])
    axis.minorticks_off()
    axis.set_title(f"{_threads(part)}, {other} {fixed}")
    axis.grid(alpha=0.3)
