"""The report of an inference pass: one HTML page that needs no network and no other file."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import quote

from abele.storage.atomic import write_text
from cosmictagger.measures import NAMES, PLANES
from cosmictagger.results.plots import CLASS_NAMES, PLANE_NAMES
from cosmictagger.results.tally import Row, Tally

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2126; --soft: #5b6670; --line: #dfe4e8; --card: #f6f8f9;
  --right: #0072b2; --wrong: #d55e00; --met: #00704f; --missed: #b04a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181c; --ink: #e6eaed; --soft: #9aa6b0; --line: #2f373e; --card: #1c2227;
    --right: #56b4e9; --wrong: #e69f00; --met: #4cc9a0; --missed: #ffa657;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
}
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
a { color: var(--right); overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .7rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 .5rem; }
p { margin: .6rem 0; color: var(--soft); }
.lead { font-size: 1.1rem; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .9rem; text-align: left; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: 0; }
th { font-weight: 600; color: var(--soft); font-size: .88rem; }
.number { text-align: right; white-space: nowrap; }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.met { color: var(--met); } .missed { color: var(--missed); }
.cell { display: block; padding: .3rem .6rem; border-radius: 4px; }
.cell small { display: block; }
.cell.right {
  background: color-mix(in srgb, var(--right) calc(var(--depth) * .35), transparent);
}
.cell.wrong {
  background: color-mix(in srgb, var(--wrong) calc(var(--depth) * .45), transparent);
}
img {
  display: block; width: 100%; height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: 6px;
}
@media (max-width: 40rem) {
  main { padding: 1.2rem .8rem 3rem; } h1 { font-size: 1.5rem; }
  th, td { padding: .4rem .6rem; } #events td, .missed, .met { white-space: nowrap; }
  .picture img { width: 52rem; max-width: none; }
}
@media print { main { max-width: none; } section { break-inside: avoid; } }
"""


_TARGETS = {
    "Total_Accuracy": ("Total accuracy", 0.999),
    "Non_Bkg_Accuracy": ("Non-background accuracy", 0.95),
    "Cosmic_IoU": ("Cosmic IoU", 0.90),
    "Neutrino_IoU": ("Neutrino IoU", 0.70),
    "mIoU": ("Mean IoU", None),
}
_MOST_ROWS = 20


@dataclass(frozen=True)
class Content:
    """The numbers, tables and pictures that an inference report shows.

    Attributes:
        title: of the page.
        proof: what proves where the pass ran, by name.
        settings: of the pass, by name.
        tally: of all events; without labels its rows have no metrics.
        displays: rows and pictures, in the order to be shown.
        curves: picture of the training curves, if there are any.
        files: what else was written, by name, with a sentence on each.
    """

    title: str
    proof: Mapping[str, object]
    settings: Mapping[str, object]
    tally: Tally
    displays: Sequence[tuple[Row, Path]] = ()
    curves: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def save(content: Content, path: Path) -> Path:
    """Write the page at once or not at all."""
    write_text(path, page(content))
    return path


def page(content: Content) -> str:
    """Return the page as HTML; pictures are inside, and every text from elsewhere is escaped."""
    sections = [
        _section("Where it ran", _facts({**content.proof, **content.settings})),
        *_metric_sections(content.tally),
        *_curves(content.curves),
        *_events(content),
        *_files(content.files),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(content.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(content.title)}</h1>\n{_summary(content.tally)}\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _summary(tally: Tally) -> str:
    rows = len(tally.rows)
    events = f"{rows:,} event{'' if rows == 1 else 's'}"
    value, count = tally.mean("Average/mIoU")
    if not count:
        return (
            f'<p class="lead">{events}. The file has no labels: there are scores, no metrics.</p>'
        )
    met = sum(
        tally.mean(f"Average/{key}")[0] >= goal for key, (_, goal) in _TARGETS.items() if goal
    )
    return (
        f'<p class="lead">{events}, mean IoU {_percent(value)}; {met} of 4 targets of the '
        "CosmicTagger project reached.</p>"
    )


def _metric_sections(tally: Tally) -> list[str]:
    if not any(row.metrics for row in tally.rows):
        return []
    sections = [
        _section("Metrics", _target_table(tally)),
        _section("By plane", _plane_table(tally)),
    ]
    if tally.confusion.any():
        sections.append(_section("What was taken for what", _confusion_table(tally)))
    return sections


def _target_table(tally: Tally) -> str:
    rows = []
    for key, (name, goal) in _TARGETS.items():
        value, count = tally.mean(f"Average/{key}")
        if goal is None or not count:
            verdict, target = "", "" if goal is None else f"&gt; {_percent(goal)}"
        else:
            met = value > goal
            target = f"&gt; {_percent(goal)}"
            verdict = (
                '<b class="met">✓ reached</b>' if met else '<b class="missed">✗ not reached</b>'
            )
        rows.append([escape(name), _percent(value), target, verdict, f"{count:,}"])
    note = (
        "<p>Each metric is the mean over planes, then over the events where it is defined. "
        "An IoU of a class that is neither there nor predicted counts as 1.</p>"
    )
    return _table(["metric", "value", "target", "", "events"], rows, numbers={1, 2, 4}) + note


def _plane_table(tally: Tally) -> str:
    rows = [
        [escape(PLANE_NAMES[plane])]
        + [_percent(tally.mean(f"plane{plane}/{key}")[0]) for key in NAMES]
        for plane in range(PLANES)
    ]
    heads = ["plane", *(_TARGETS[key][0] for key in NAMES)]
    return _table(heads, rows, numbers=set(range(1, 6)))


def _confusion_table(tally: Tally) -> str:
    total = tally.confusion.sum(dim=0)
    rows = []
    for true, counts in enumerate(total):
        cells = [f"<b>{CLASS_NAMES[true]}</b>"]
        for predicted, count in enumerate(counts):
            share = float(count / counts.sum()) if counts.any() else float("nan")
            kind = "right" if true == predicted else "wrong"
            depth = 0 if math.isnan(share) else round(100 * share)
            cells.append(
                f'<span class="cell {kind}" style="--depth:{depth}%">{_percent(share)}'
                f"<small>{int(count):,}</small></span>"
            )
        rows.append(cells)
    heads = ["true class", *(f"taken for {name}" for name in CLASS_NAMES)]
    note = "<p>Shares of the pixels of each true class; below, pixels of all planes and events.</p>"
    return _table(heads, rows, numbers={1, 2, 3}) + note


def _curves(picture: Path | None) -> list[str]:
    if picture is None:
        return []
    return [_section("Training", _picture(picture, "Loss, IoU and learning rate by training step"))]


def _events(content: Content) -> list[str]:
    parts = []
    if any("Average/mIoU" in row.metrics for row in content.tally.rows):
        ranked = sorted(content.tally.rows, key=_rank)
        if len(ranked) > _MOST_ROWS:
            parts.append(f"<p>The {_MOST_ROWS} events with the lowest mean IoU.</p>")
        parts.append(_event_table(ranked[:_MOST_ROWS]))
    for row, picture in content.displays:
        name = _event_name(row)
        value = row.metrics.get("Average/mIoU")
        heading = name if value is None else f"{name}: mean IoU {_percent(value)}"
        parts.append(f"<h3>{escape(heading)}</h3>{_picture(picture, _described(name))}")
    return [_section("Events", "".join(parts), name="events")] if parts else []


def _described(name: str) -> str:
    """Return the alternative text of an event display."""
    return (
        f"Event display of {name}: true labels, predicted labels and neutrino score side by side, "
        "one row for each of three wire planes, wires to the right and drift time upwards"
    )


def _event_table(rows: Sequence[Row]) -> str:
    keys = ("mIoU", "Cosmic_IoU", "Neutrino_IoU", "Non_Bkg_Accuracy")
    cells = []
    for row in rows:
        values = [_percent(row.metrics.get(f"Average/{key}", float("nan"))) for key in keys]
        nu = row.neutrino
        truth = f"{nu.flavour} {nu.current}, {nu.energy:.2f} GeV" if nu else ""
        cells.append([str(row.entry), " / ".join(map(str, row.event_id)), *values, escape(truth)])
    heads = ["entry", "run / subrun / event", *(_TARGETS[key][0] for key in keys), "neutrino"]
    return _table(heads, cells, numbers={0, 2, 3, 4, 5})


def _files(files: Mapping[str, str]) -> list[str]:
    if not files:
        return []
    rows = [[_file(name), escape(text)] for name, text in files.items()]
    return [_section("Files beside this page", _table(["file", "content"], rows))]


def _file(name: str) -> str:
    """Format the name of a file; link to it if it is a page."""
    text = f"<code>{escape(name)}</code>"
    return f'<a href="{quote(name)}">{text}</a>' if name.endswith(".html") else text


def _rank(row: Row) -> float:
    value = row.metrics.get("Average/mIoU", float("nan"))
    return math.inf if math.isnan(value) else value


def _event_name(row: Row) -> str:
    run, subrun, event = row.event_id
    return f"run {run}, subrun {subrun}, event {event} (entry {row.entry})"


def _facts(facts: Mapping[str, object]) -> str:
    rows = [
        [escape(name), f"<code>{escape(_plain(value))}</code>"] for name, value in facts.items()
    ]
    return _table(["", ""], rows, head=False)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "none" if value is None else str(value)


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.2f} %"


def _section(title: str, body: str, name: str = "") -> str:
    named = f' id="{name}"' if name else ""
    return f"<section{named}>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def _picture(path: Path, text: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    image = f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'
    return f'<div class="scroll picture" tabindex="0">{image}</div>'


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: set[int] | frozenset[int] = frozenset(),
    head: bool = True,
) -> str:
    """Return a table of HTML cells; ``heads`` are text, ``numbers`` the columns to align right."""

    def cell(tag: str, index: int, content: str) -> str:
        shown = ' class="number"' if index in numbers else ""
        return f"<{tag}{shown}>{content}</{tag}>"

    lines = [
        "<tr>" + "".join(cell("td", index, text) for index, text in enumerate(row)) + "</tr>"
        for row in rows
    ]
    top = "".join(
        cell("th" if text else "td", index, escape(text)) for index, text in enumerate(heads)
    )
    header = f"<thead><tr>{top}</tr></thead>" if head else ""
    body = f"<table>{header}<tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{body}</div>'
