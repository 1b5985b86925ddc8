"""Cards of models, compiled functions and reports, which notebooks show for a cell's result."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from abele.report import words
from abele.report.journal import FILE as JOURNAL
from abele.report.journal import Journal
from abele.report.page import FILE, markup, page, write_page
from abele.report.page.markup import Html, html, tag
from abele.report.record import Run
from abele.storage.atomic import write_text

# Colours of the notebook's own theme: that of its text, and one that is read on light and dark.
_LINE = "fill:none;stroke:#3a8fc7;stroke-width:2;vector-effect:non-scaling-stroke"
_SOFT = "opacity:.7;font-size:.85em"
_PAGE = "width:100%;height:36rem;border:1px solid #8886"


def card(
    title: str, facts: Sequence[tuple[str, str]], losses: Sequence[tuple[int, float]] = ()
) -> str:
    """Return a card as HTML for a notebook.

    Args:
        title: what the card is about.
        facts: names and values; those without a value are left out.
        losses: pairs of a call's number and its loss, in order, for a curve.
    """
    left = "text-align:left;vertical-align:top"
    rows = [
        tag("tr", tag("td", name, style=f"{left};{_SOFT}"), tag("td", value, style=left))
        for name, value in facts
        if value
    ]
    table = tag("table", tag("tbody", rows), style="margin:.3em 0")
    curve = _curve([each for each in losses if math.isfinite(each[1])])
    return tag("div", tag("b", title), table, curve, style="max-width:44em")


def _curve(losses: Sequence[tuple[int, float]]) -> Html | None:
    if len(losses) < 2:
        return None
    values = [value for _, value in losses]
    y, last = markup.height_of(min(values), max(values)), losses[-1][0]
    points = [(call / last * markup.WIDTH, y(value)) for call, value in losses]
    said = f"loss {words.number(values[0])} to {words.number(values[-1])}, call 1 to {last:,}"
    picture = tag(
        "svg",
        markup.line(points, style=_LINE),
        viewBox=f"0 -4 {markup.WIDTH:g} {markup.HEIGHT + 8:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
        style="display:block;width:100%;height:5em",
    )
    return html(picture, tag("div", said, style=_SOFT))


@dataclasses.dataclass(frozen=True)
class Written:
    """A report that has been written; a notebook shows its page.

    Attributes:
        path: the page.
    """

    path: Path

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        # Links inside of the page would lead to the notebook without a base of its own.
        text = self.path.read_text(encoding="utf-8")
        text = text.replace("<head>", '<head><base href="about:srcdoc">', 1)
        return tag("iframe", srcdoc=text, title=self.path.name, style=_PAGE)


def write(path: Path, run: Run, journal: Journal, of: Path | None = None) -> Written:
    """Write the report of a run that goes on: a page, or a folder with page and record.

    Args:
        path: a file whose name ends with ``.html`` or ``.htm``, else a folder.
        run: record of the run.
        journal: journal of the run.
        of: folder in which the run is recorded, whose journal is copied; None if it is not.

    Raises:
        OSError: a file cannot be written.
    """
    if path.suffix.lower() in (".html", ".htm"):
        write_text(path, page(run, journal, alive=True))
        return Written(path)
    path.mkdir(parents=True, exist_ok=True)
    run.write(path)
    write_page(path, run, journal, alive=True)
    if of is not None and of.resolve() != path.resolve():
        shutil.copyfile(of / JOURNAL, path / JOURNAL)
    return Written(path / FILE)
