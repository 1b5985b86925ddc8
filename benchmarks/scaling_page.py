"""What a record of ``scaling.py`` says: the lines of ``notes/scaling.md`` and a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

NOTES = Path(__file__).resolve().parent / "notes"
BEGIN, END = "<!-- written by benchmarks/scaling.py -->", "<!-- end of what it writes -->"
BEGIN_64, END_64 = "<!-- 64 instances, by benchmarks/scaling.py -->", "<!-- end of 64 instances -->"
_SHOWN = ("1", "4", "64", "256", "1024", "4096")
_TERMS = ("compute", "stragglers", "reduction", "input")
_COLOURS = {"A21": "#0072B2", "ResNet-18": "#D55E00"}
_STYLES = {"ring": "-", "ring, overlapped": ":", "halving": "--"}
_POINTS = {"torch DDP": ("o", "#000000"), "TensorFlow, Horovod": ("^", "#777777")}
_PARTS = {
    "compute": "#0072B2",
    "stragglers": "#E69F00",
    "reduction": "#CC3311",
    "input": "#999999",
}


def lines(result: dict[str, Any]) -> list[str]:
    """Return the result for people, line by line."""
    return [*_measured(result), "", *_table(result), "", *_limits(result)]


def lines_64(result: dict[str, Any]) -> list[str]:
    """Return what CosmicTagger's A21 would do on 64 instances, term by term."""
    entries = [entry for entry in result["projected"] if entry["workload"] == "A21"]
    rows = [
        f"| A21 on 64 instances | {' | '.join(_TERMS)} | step | images/s | efficiency |",
        "|---" * (len(_TERMS) + 4) + "|",
    ]
    for entry in entries:
        terms, rate = entry["terms_s"]["64"], entry["images_per_s"]["64"]
        cells = [f"{terms[name]:.3f}" for name in _TERMS]
        cells += [f"{64 / rate:.3f} s", f"{rate:.0f}", f"{100 * entry['efficiency']['64']:.0f} %"]
        rows.append(f"| {entry['system']} | {' | '.join(cells)} |")
    return rows


def renew(result: dict[str, Any], record: str) -> None:
    """Replace the numbers of the page and draw the picture anew.

    Args:
        result: of ``scaling.project``.
        record: name of the file with it, for the reader of the page.
    """
    page = NOTES / "scaling.md"
    link = f"From [`{record}`](../records/{record}):"
    text = _replaced(page.read_text(), BEGIN, [link, "", *lines(result)], END)
    page.write_text(_replaced(text, BEGIN_64, lines_64(result), END_64))
    draw(result, NOTES / "scaling.svg")


def _replaced(page: str, begin: str, body: list[str], end: str) -> str:
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise RuntimeError(f"notes/scaling.md has no lines between {begin!r} and {end!r}.")
    return pattern.sub(lambda _: "\n".join([begin, *body, end]), page)


def _measured(result: dict[str, Any]) -> list[str]:
    environment, fitted = result["environment"], result["fitted"]
    loopback, spread = fitted["loopback"], fitted["spread"]
    carried = fitted["measured_over_model_4"].values()
    times = sorted(result["measured"]["a21_step_s"])
    machine = f"{environment['cpu']}, {environment['cores']} cores, torch {environment['torch']}"
    gloo = (
        f"gloo between two processes here: {loopback['latency_s'] * 1e6:.0f} microseconds a hop, "
        f"{loopback['bytes_per_s'] / 1e9:.2f} GB/s; four processes on these cores take "
        f"{min(carried):.1f} to {max(carried):.1f} times what follows from that"
    )
    a21 = (
        f"{len(times)} steps of A21, one image of 320 x 512: mean {sum(times) / len(times):.2f} s, "
        f"{times[0]:.2f} to {times[-1]:.2f} s, standard deviation "
        f"{100 * spread['relative_sd']:.1f} %, most like the {spread['kind']} distribution"
    )
    resnet18 = f"ResNet-18, 32 images: {result['resnet18_step_s']:.2f} s a step"
    return [f"- {text}" for text in (f"{machine}, one thread per process", gloo, a21, resnet18)]


def _table(result: dict[str, Any]) -> list[str]:
    head = "| efficiency on ranks | " + " | ".join(f"{int(n):,}" for n in _SHOWN) + " | images/s |"
    rows = [head, "|---|" + "---|" * (len(_SHOWN) + 1)]
    for entry in result["projected"]:
        cells = [f"{100 * entry['efficiency'][n]:.0f} %" for n in _SHOWN]
        rate = entry["images_per_s"][_SHOWN[-1]]
        name = f"{entry['workload']}, {entry['system']}"
        rows.append(f"| {name} | {' | '.join(cells)} | {rate:,.0f} |")
    for name, published in result["published"].items():
        efficiency = published_efficiency(published["images_per_s"])
        values = [efficiency.get(int(n)) for n in _SHOWN]
        cells = ["" if value is None else f"{100 * value:.0f} %" for value in values]
        rate = max(published["images_per_s"].values())
        rows.append(f"| published, {name} | {' | '.join(cells)} | {rate:,.0f} |")
    cells = [result["polaris"]["efficiency"].get(n) for n in _SHOWN]
    shown = ["" if value is None else f"{100 * value:.0f} %" for value in cells]
    return [*rows, f"| that machine by its wires and spread alone | {' | '.join(shown)} | |"]


def published_efficiency(points: dict[str, float]) -> dict[int, float]:
    """Per rank, against the fewest ranks that were published."""
    least = min(map(int, points))
    base = points[str(least)] / least
    return {int(n): rate / int(n) / base for n, rate in points.items()}


def _limits(result: dict[str, Any]) -> list[str]:
    """Return what a step on 1,024 ranks is made of, and from when on each part counts."""
    limits = [_limit(entry) for entry in result["projected"]]
    fit = result["published"]["torch DDP"]["fit"]
    base = fit["work"] + fit["tail"] + fit["hop"]
    fitted = (
        f"- published, torch DDP: within {100 * fit['error']:.0f} % of all points, a step of one "
        f"rank of which {100 * fit['tail'] / base:.1f} % has an exponential tail, and "
        f"{1e6 * fit['hop'] / base:.0f} millionths of it more for each hop of a ring"
    )
    return [*limits, fitted]


def _limit(entry: dict[str, Any]) -> str:
    terms = entry["terms_s"]["1024"]
    simulated = entry.get("simulated_1024_s")
    simulation = (
        f" (simulated: {simulated['mean']:.2f} +- {simulated['standard_error']:.2f})"
        if simulated
        else ""
    )
    parts = ", ".join(f"{name} {terms[name]:.2f}" for name in _TERMS)
    starts = entry["a_tenth_of_compute_from"]
    counts = ", ".join(
        f"{name} {'never' if n is None else f'from {n:,} ranks on'}" for name, n in starts.items()
    )
    return (
        f"- {entry['workload']}, {entry['system']}: {sum(terms.values()):.2f} s{simulation} on "
        f"1,024 ranks: {parts}. A tenth of compute or more: {counts}"
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """Efficiency against ranks, and where the time of a step goes on 1,024.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("The picture needs matplotlib: pip install matplotlib") from None
    settings: Any = {"svg.hashsalt": "scaling", "svg.fonttype": "none", "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(11, 5), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_efficiency(left, result)
        _draw_parts(right, result)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=100)
    if path.suffix == ".svg":
        text = path.read_text()
        path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def _drawn(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in result["projected"] if entry["system"] in _STYLES]


def _draw_efficiency(axes: Any, result: dict[str, Any]) -> None:
    for entry in _drawn(result):
        points = {int(n): value for n, value in entry["efficiency"].items()}
        axes.plot(
            list(points),
            list(points.values()),
            _STYLES[entry["system"]],
            color=_COLOURS[entry["workload"]],
            label=f"{entry['workload']} here, {entry['system']}",
        )
    for name, published in result["published"].items():
        points = published_efficiency(published["images_per_s"])
        marker, colour = _POINTS[name]
        label = f"published: A100, {name}"
        axes.plot(list(points), list(points.values()), marker, color=colour, ms=5, label=label)
    points = {int(n): value for n, value in result["polaris"]["efficiency"].items()}
    label = "A100 by wires and spread alone"
    axes.plot(list(points), list(points.values()), "-.", color="#000000", lw=1, label=label)
    axes.set_xscale("log", base=2)
    ticks = [1, 4, 16, 64, 256, 1024, 4096]
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(alpha=0.3)
    axes.set_xlabel("ranks")
    axes.set_title("Images per second and rank, against the fewest ranks", fontsize=10)
    axes.legend(fontsize=8, loc="lower left")


def _draw_parts(axes: Any, result: dict[str, Any]) -> None:
    entries = _drawn(result)
    names = [f"{entry['workload']}\n{entry['system']}" for entry in entries]
    start = [0.0] * len(entries)
    for part in _TERMS:
        seconds = [entry["terms_s"]["1024"][part] for entry in entries]
        axes.barh(names, seconds, left=start, color=_PARTS[part], label=part)
        start = [before + more for before, more in zip(start, seconds, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title("One step on 1,024 ranks", fontsize=10)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, frameon=False)
