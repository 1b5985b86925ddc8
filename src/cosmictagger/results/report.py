"""The pages of training and inference: one HTML file each, which needs no network and no other."""

from __future__ import annotations

import base64
import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from abele.report.page import document
from abele.report.page.markup import Html, facts, html, section, table, tag
from cosmictagger.measures import CHARGE_NAMES, EVENT_CLASSES, NAMES, PLANES
from cosmictagger.results.plots import CLASS_NAMES, PLANE_NAMES, Curves
from cosmictagger.results.tally import Mean, Row, Tally, mean_of, rank

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
    **{name: (name.replace("_", " ").capitalize(), None) for name in CHARGE_NAMES[len(NAMES) :]},
}
_HEADS = {
    "EventLabel": "Events of the right class",
    "VertexDetection": "Vertices in the right box",
    "VertexResolution": "Distance of the vertex, in units of the file",
}
_NEAR = (1, 2, 5, 10, 20, 50)  # units of the file, centimetres as a rule
_WHOLE = """
A vertex is found in the box of the highest score, at the place that the network gives inside of
it. Events without a neutrino are left out, and planes in which the vertex is outside of the image.
"""
_DISTANCES = """
Shares of the vertices of a plane that were found so far from where they are, in units of the file:
centimetres as a rule.
"""
_MOST_ROWS = 20
_LATEST = 0.9  # of a training's steps are over where its latest numbers begin
_ERROR = "± is the standard error of the mean: the standard deviation divided by √(their number)."
_METRICS = f"""
Each metric is the mean over planes, then over the events where it is defined. {_ERROR} An IoU of a
class that is neither there nor predicted counts as 1. Efficiency is the share of a class's true
pixels that are labelled so; purity is the share of the pixels labelled so that are truly of it.
Targets are for all pixels, most of which are empty. Pixels with charge are those of predictions.h5:
the numbers over them follow from that file and the labels of the events.
"""
_LOSS = """
Lines are running means over training steps; points are single validation batches. The loss of the
default scheme, focal, is a mean in which a pixel weighs (1 - p)², p being the probability of its
true class: it shows whether training diverges, but can rise while the neutrino IoU triples, because
easy pixels drop out of it and hard ones remain. Judge a training by the IoU of its validation.
"""
_RECENT = f"Means over the batches of the last tenth of the steps. {_ERROR}"
_CONFUSION = """
Shares of the pixels with charge of each true class, of all planes and events together; the diagonal
is the efficiency. Purity is the share of the pixels taken for a class that are truly of it.
"""


@dataclass(frozen=True)
class Content:
    """The numbers, tables and pictures that a page shows.

    Attributes:
        proof: what proves where the run ran, by name.
        settings: of the run, by name.
        tally: of all events of a pass; without labels its rows have no metrics. None in training.
        displays: rows and pictures, in the order to be shown.
        curves: of training and validation batches, by ``train`` and ``test``.
        picture: of the curves, if there are any.
        files: what else was written, by name, with a sentence on each.
    """

    title: str
    proof: Mapping[str, object]
    settings: Mapping[str, object]
    tally: Tally | None = None
    displays: Sequence[tuple[Row, Path]] = ()
    curves: Mapping[str, Curves] = field(default_factory=dict)
    picture: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def page(content: Content) -> str:
    """Return the page as HTML; pictures are inside, and every text from elsewhere is escaped."""
    known = {**content.proof, **content.settings}.items()
    rows = [(name.replace("_", " "), _plain(value)) for name, value in known]
    sections = [section("Where it ran", facts(rows), name="proof")]
    lead = "Training and validation so far, up to the last checkpoint."
    if content.tally is not None:
        lead = _summary(content.tally)
        if any(row.metrics for row in content.tally.rows):
            sections += _metrics(content.tally)
            sections += _whole(content.tally)
    if content.picture is not None:
        sections.append(section("Training", _training(content), name="training"))
    if content.tally is not None and (shown := _events(content.tally, content.displays)):
        sections.append(section("Events", shown, name="events"))
    if content.files:
        files = [[_file(name), text] for name, text in content.files.items()]
        listed = table(["file", "content"], files)
        sections.append(section("Files beside this page", listed, name="files"))
    head = tag("h1", content.title), tag("p", lead, class_="lead")
    return document(content.title, html(tag("style", Html(_STYLE)), head, sections))


def _summary(tally: Tally) -> str:
    rows = len(tally.rows)
    events = f"{rows:,} event{'' if rows == 1 else 's'}"
    mean = tally.mean("Average/mIoU")
    if not mean.count:
        return f"{events}. The file has no labels: there are scores, no metrics."
    goals = {key: goal for key, (_, goal) in _TARGETS.items() if goal}
    met = sum(tally.mean(f"Average/{key}").value > goal for key, goal in goals.items())
    return (
        f"{events}, mean IoU {_percent(mean.value)}; {met} of {len(goals)} targets of the "
        "CosmicTagger project reached."
    )


def _training(content: Content) -> list[Html]:
    """Return the curves, what they show, and the latest numbers of training and validation."""
    names = {"loss": "Loss"} | {f"Average/{key}": _TARGETS[key][0] for key in NAMES}
    heads = {f"Average/{key}": name for key, name in _HEADS.items()}
    every = dict.fromkeys(key for curves in content.curves.values() for key in curves)
    names |= {key: f"Loss: {key[5:].replace('_', ' ')}" for key in every if key[:5] == "loss/"}
    names |= {key: name for key, name in heads.items() if key in every}
    latest: dict[str, Curves] = {}
    for kind, curves in content.curves.items():
        recent = curves["step"] >= _LATEST * curves["step"][-1]
        name = {"train": "training batches", "test": "validation batches"}[kind]
        latest[name] = {key: values[recent] for key, values in curves.items()}
    rows = [
        [name, *(_with_error(mean_of(c.get(key, ())), _is_share(key)) for c in latest.values())]
        for key, name in names.items()
    ]
    assert content.picture is not None
    return [
        _picture(content.picture, "Loss, IoU and learning rate by training step"),
        tag("p", _LOSS),
        table(["metric", *latest], rows, (1, 2)),
        tag("p", _RECENT),
    ]


def _metrics(tally: Tally) -> list[Html]:
    rows = []
    for key, (name, goal) in _TARGETS.items():
        mean, charge = tally.mean(f"Average/{key}"), tally.mean(f"charge/Average/{key}")
        verdict = None
        if goal is not None and mean.count:
            met = mean.value > goal
            words = "✓ reached" if met else "✗ not reached"
            verdict = tag("b", words, class_="met" if met else "missed")
        target = f"> {_percent(goal)}" if goal else ""
        events = f"{max(mean.count, charge.count):,}"
        rows.append([name, _with_error(mean), target, verdict, _with_error(charge), events])
    heads = ["metric", "all pixels", "target", "", "pixels with charge", "events"]
    targets = table(heads, rows, (1, 2, 4, 5))
    places = [f"{kind}plane{plane}" for plane in range(PLANES) for kind in ("", "charge/")]
    planes = [
        [name, *(_with_error(tally.mean(f"{place}/{key}")) for place in places)]
        for key, (name, _) in _TARGETS.items()
    ]
    heads = ["metric", *(text for name in PLANE_NAMES for text in (name, "pixels with charge"))]
    sections = [
        section("Metrics", targets, tag("p", _METRICS), name="metrics"),
        section("By plane", table(heads, planes, range(1, 7)), name="planes"),
    ]
    if tally.confusion.any():
        confusion = _confusion(tally)
        sections.append(section("What was taken for what", confusion, name="confusion"))
    return sections


def _whole(tally: Tally) -> list[Html]:
    """Return what heads made of whole events; nothing without heads."""
    known, places = tally.keys(), ("Average", *(f"plane{plane}" for plane in range(PLANES)))
    rows = [
        [name, *(_with_error(tally.mean(f"{each}/{key}"), _is_share(key)) for each in places)]
        for key, name in _HEADS.items()
        if f"Average/{key}" in known
    ]
    if not rows:
        return []
    heads = table(["metric", "average", *PLANE_NAMES], rows, (1, 2, 3, 4))
    shown = [section("Whole events", heads, tag("p", _WHOLE), name="whole")]
    pairs = [(row.whole.true_class, row.whole.taken_for) for row in tally.rows]
    if "Average/EventLabel" in known:
        size = range(len(EVENT_CLASSES))
        counts = [[pairs.count((true, taken)) for taken in size] for true in size]
        taken = table(
            ["true class", *(f"taken for {name}" for name in EVENT_CLASSES)],
            _shares(counts, EVENT_CLASSES),
            (1, 2, 3, 4),
        )
        shown.append(section("Events taken for what", taken, name="classes"))
    if "Average/VertexResolution" in known:
        shown.append(section("How far vertices are off", _distances(tally), name="distances"))
    return shown


def _distances(tally: Tally) -> Html:
    """Return a table of how many vertices are how far off, in each plane."""
    rows = []
    for plane, name in enumerate(PLANE_NAMES):
        found = [row.metrics.get(f"plane{plane}/VertexResolution", math.nan) for row in tally.rows]
        counts = [0] * (len(_NEAR) + 1)
        for distance in found:
            if not math.isnan(distance):
                counts[bisect.bisect(_NEAR, distance)] += 1
        rows.append([tag("b", name), *(_share(count, sum(counts), "right") for count in counts)])
    ends = [f"{low} to {high}" for low, high in itertools.pairwise((0, *_NEAR))]
    heads = ["distance", *ends, f"{_NEAR[-1]} and more"]
    return html(table(heads, rows, range(1, len(heads))), tag("p", _DISTANCES))


def _shares(table_of_counts: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[Html]]:
    """Return the cells of a confusion table, ``[true class][predicted class]``."""
    return [
        [
            tag("b", names[true]),
            *(
                _share(count, sum(counts), "right" if true == predicted else "wrong")
                for predicted, count in enumerate(counts)
            ),
        ]
        for true, counts in enumerate(table_of_counts)
    ]


def _share(count: int, total: int, kind: str) -> Html:
    share = count / total if total else math.nan
    depth = 0 if math.isnan(share) else round(100 * share)
    text = f"{_percent(share)} of {total:,}"
    return tag("span", text, class_=f"cell {kind}", style=f"--depth:{depth}%")


def _confusion(tally: Tally) -> Html:
    total = tally.confusion.sum(dim=0)
    rows: list[Sequence[Html | str]] = [*_shares(total.tolist(), CLASS_NAMES)]
    right = zip(total.diagonal().tolist(), total.sum(0).tolist(), strict=True)
    purities = [f"{_percent(n / of if of else math.nan)} of {of:,}" for n, of in right]
    heads = ["true class", *(f"taken for {name}" for name in CLASS_NAMES)]
    rows.append([tag("b", "purity"), *purities])
    return html(table(heads, rows, (1, 2, 3)), tag("p", _CONFUSION))


def _events(tally: Tally, displays: Sequence[tuple[Row, Path]]) -> list[Html]:
    parts = []
    if any("Average/mIoU" in row.metrics for row in tally.rows):
        ranked = sorted(tally.rows, key=rank)
        if len(ranked) > _MOST_ROWS:
            parts.append(tag("p", f"The {_MOST_ROWS} events with the lowest mean IoU."))
        parts.append(_event_table(ranked[:_MOST_ROWS]))
    for row, picture in displays:
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
    names = [f"Average/{name}" for name in ("mIoU", "Cosmic_IoU", "Neutrino_IoU")]
    names += [f"charge/Average/{name}" for name in CHARGE_NAMES[-2:]]
    keys = {name: _TARGETS[name.rpartition("/")[2]][0] for name in names}
    cells, has_class = [], any(row.whole.scores for row in rows)
    for row in rows:
        values = [_percent(row.metrics.get(key, math.nan)) for key in keys]
        nu = row.neutrino
        truth = f"{nu.flavour} {nu.current}, {nu.energy:.2f} GeV" if nu else ""
        taken = row.whole.names()[1:] if has_class else ()
        cells.append([row.entry, " / ".join(map(str, row.event_id)), *values, truth, *taken])
    heads = ["entry", "run / subrun / event", *keys.values(), "neutrino"]
    heads += ["taken for"] * has_class
    return table(heads, cells, (0, *range(2, 2 + len(keys))))


def _file(name: str) -> Html:
    """Format a file name for the report; a link if the file is a page."""
    text = tag("code", name)
    return tag("a", text, href=name) if name.endswith(".html") else text


def _plain(value: object) -> Html:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return tag("code", "none" if value is None else text)


def _is_share(key: str) -> bool:
    return not key.startswith("loss") and not key.endswith("VertexResolution")


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.2f} %"


def _with_error(mean: Mean, percent: bool = True) -> str:
    """Format a mean with its standard error, as percentages or as it is; empty without values."""
    scale, digits, unit = (100, 2, " %") if percent else (1, 3, "")
    error = "" if math.isnan(mean.error) else f" ± {scale * mean.error:.{digits}f}"
    return f"{scale * mean.value:.{digits}f}{error}{unit}" if mean.count else ""


def _picture(path: Path, text: str) -> Html:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    image = Html(f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">')
    return tag("div", image, class_="scroll picture", tabindex=0)
