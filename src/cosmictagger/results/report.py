"""HTML report of an inference pass: one self-contained page."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from abele.report.page import document
from abele.report.page.markup import Html, html, section, table, tag
from abele.storage.atomic import write_text
from cosmictagger.measures import NAMES, PLANES
from cosmictagger.results.plots import CLASS_NAMES, PLANE_NAMES
from cosmictagger.results.tally import Row, Tally

_STYLE = """
img { display: block; width: 100%; height: auto; background: #ffffff; }
.cell { display: block; padding: .3rem .6rem; border-radius: 4px; }
.right { background: color-mix(in srgb, var(--c1) calc(var(--depth) * .35), transparent); }
.wrong { background: color-mix(in srgb, var(--bad) calc(var(--depth) * .45), transparent); }
.met { color: var(--good); } .missed { color: var(--bad); }
@media (max-width: 40rem) { .picture img { width: 52rem; max-width: none; } }
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
    """Write the HTML report of an inference pass atomically."""
    write_text(path, page(content))
    return path


def page(content: Content) -> str:
    """Render the report as HTML with embedded pictures and escaped text."""
    facts = [[name, _plain(value)] for name, value in {**content.proof, **content.settings}.items()]
    sections = [section("Where it ran", table([], facts), name="proof")]
    if any(row.metrics for row in content.tally.rows):
        sections += _metrics(content.tally)
    if content.curves is not None:
        text = "Loss, IoU and learning rate by training step"
        sections.append(section("Training", _picture(content.curves, text), name="training"))
    if shown := _events(content):
        sections.append(section("Events", shown, name="events"))
    if content.files:
        files = [[_file(name), text] for name, text in content.files.items()]
        listed = table(["file", "content"], files)
        sections.append(section("Files beside this page", listed, name="files"))
    head = tag("h1", content.title), tag("p", _summary(content.tally), class_="lead")
    return document(content.title, html(tag("style", Html(_STYLE)), head, sections))


def _summary(tally: Tally) -> str:
    rows = len(tally.rows)
    events = f"{rows:,} event{'' if rows == 1 else 's'}"
    value, count = tally.mean("Average/mIoU")
    if not count:
        return f"{events}. The file has no labels: there are scores, no metrics."
    met = sum(
        tally.mean(f"Average/{key}")[0] >= goal for key, (_, goal) in _TARGETS.items() if goal
    )
    return (
        f"{events}, mean IoU {_percent(value)}; {met} of 4 targets of the CosmicTagger project "
        "reached."
    )


def _metrics(tally: Tally) -> list[Html]:
    rows = []
    for key, (name, goal) in _TARGETS.items():
        value, count = tally.mean(f"Average/{key}")
        verdict = None
        if goal is not None and count:
            met = value > goal
            words = "✓ reached" if met else "✗ not reached"
            verdict = tag("b", words, class_="met" if met else "missed")
        target = f"> {_percent(goal)}" if goal else ""
        rows.append([name, _percent(value), target, verdict, f"{count:,}"])
    note = tag(
        "p",
        "Each metric is the mean over planes, then over the events where it is defined. An IoU of "
        "a class that is neither there nor predicted counts as 1.",
    )
    planes = [
        [PLANE_NAMES[plane], *(_percent(tally.mean(f"plane{plane}/{key}")[0]) for key in NAMES)]
        for plane in range(PLANES)
    ]
    names = [_TARGETS[key][0] for key in NAMES]
    targets = table(["metric", "value", "target", "", "events"], rows, (1, 2, 4))
    sections = [
        section("Metrics", targets, note, name="metrics"),
        section("By plane", table(["plane", *names], planes, range(1, 6)), name="planes"),
    ]
    if tally.confusion.any():
        confusion = _confusion(tally)
        sections.append(section("What was taken for what", confusion, name="confusion"))
    return sections


def _confusion(tally: Tally) -> Html:
    rows = []
    for true, counts in enumerate(tally.confusion.sum(dim=0).tolist()):
        cells: list[Html] = [tag("b", CLASS_NAMES[true])]
        for predicted, count in enumerate(counts):
            share = count / sum(counts) if sum(counts) else math.nan
            kind = "right" if true == predicted else "wrong"
            depth = 0 if math.isnan(share) else round(100 * share)
            text = f"{_percent(share)} of {sum(counts):,}"
            cells.append(tag("span", text, class_=f"cell {kind}", style=f"--depth:{depth}%"))
        rows.append(cells)
    heads = ["true class", *(f"taken for {name}" for name in CLASS_NAMES)]
    note = tag("p", "Shares of the pixels of each true class, of all planes and events.")
    return html(table(heads, rows, (1, 2, 3)), note)


def _events(content: Content) -> list[Html]:
    parts = []
    if any("Average/mIoU" in row.metrics for row in content.tally.rows):
        ranked = sorted(content.tally.rows, key=_rank)
        if len(ranked) > _MOST_ROWS:
            parts.append(tag("p", f"The {_MOST_ROWS} events with the lowest mean IoU."))
        parts.append(_event_table(ranked[:_MOST_ROWS]))
    for row, picture in content.displays:
        run, subrun, event = row.event_id
        name = f"run {run}, subrun {subrun}, event {event} (entry {row.entry})"
        value = row.metrics.get("Average/mIoU")
        heading = name if value is None else f"{name}: mean IoU {_percent(value)}"
        described = (
            f"Event display of {name}: true labels, predicted labels and neutrino score side by "
            "side, one row for each of three wire planes, wires to the right and drift time upwards"
        )
        parts += [tag("h3", heading), _picture(picture, described)]
    return parts


def _event_table(rows: Sequence[Row]) -> Html:
    keys = ("mIoU", "Cosmic_IoU", "Neutrino_IoU", "Non_Bkg_Accuracy")
    cells = []
    for row in rows:
        values = [_percent(row.metrics.get(f"Average/{key}", math.nan)) for key in keys]
        nu = row.neutrino
        truth = f"{nu.flavour} {nu.current}, {nu.energy:.2f} GeV" if nu else ""
        cells.append([row.entry, " / ".join(map(str, row.event_id)), *values, truth])
    heads = ["entry", "run / subrun / event", *(_TARGETS[key][0] for key in keys), "neutrino"]
    return table(heads, cells, (0, 2, 3, 4, 5))


def _file(name: str) -> Html:
    """Format a file name for the report; a link if the file is a page."""
    text = tag("code", name)
    return tag("a", text, href=name) if name.endswith(".html") else text


def _rank(row: Row) -> float:
    value = row.metrics.get("Average/mIoU", math.nan)
    return math.inf if math.isnan(value) else value


def _plain(value: object) -> Html:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return tag("code", "none" if value is None else text)


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.2f} %"


def _picture(path: Path, text: str) -> Html:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    image = Html(f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">')
    return tag("div", image, class_="scroll picture", tabindex=0)
