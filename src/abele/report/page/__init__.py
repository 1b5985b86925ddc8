"""Renders the page of a run: one HTML file without external files, network or JavaScript.

It depends only on ``run.json`` and the journal, whose text ``markup`` escapes.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from abele.report.journal import Journal
from abele.report.page import overview, programs
from abele.report.page.markup import STYLE, Html, html, tag
from abele.report.page.programs import memory, modules, operators
from abele.report.record import Run
from abele.report.status import status_of
from abele.storage.atomic import is_full, write_text

FILE = "report.html"

_LINKS = {
    "proof": "what ran where",
    "memory": "memory",
    "modules": "modules",
    "operators": "operators",
    "lowerings": "who computes",
    "time": "host",
    "pipeline": "pipeline",
    "optimizer": "optimizer",
    "options": "options",
    "loss": "loss",
    "programs": "programs",
}


def page(run: Run, journal: Journal, *, alive: bool | None = None) -> str:
    """Return the HTML page of a run.

    Args:
        run: record of the run.
        journal: journal of the run.
        alive: whether the run's process is alive; None if unknown.
    """
    status = status_of(journal, alive)
    has = bool(run.programs)
    sections = {
        "proof": overview.proof(run, journal),
        "memory": memory(run) if has else None,
        "modules": modules(run) if has else None,
        "operators": operators(run, journal) if has else None,
        "lowerings": programs.lowerings(run) if has else None,
        "time": overview.timeline(run, journal),
        "pipeline": overview.pipeline(run),
        "optimizer": overview.optimizer(run),
        "options": programs.options(run),
        "loss": overview.loss(journal),
        "programs": programs.passes(run) if has else None,
    }
    shown = {name: each for name, each in sections.items() if each is not None}
    links = [tag("a", _LINKS[name], href=f"#{name}") for name in shown]
    head = html(
        tag("h1", run.name),
        tag("p", _when(run), class_="soft"),
        overview.verdict(run, journal, status),
        tag("nav", links, aria_label="Sections"),
        overview.trouble(journal, status),
    )
    return document(f"{run.name}: report", html(head, list(shown.values())))


def write_page(folder: Path, run: Run, journal: Journal, *, alive: bool | None = None) -> None:
    """Write the HTML page of a run atomically into the run's folder.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    text = page(run, journal, alive=alive)
    try:
        write_text(folder / FILE, text)
    except OSError as error:
        if not is_full(error):
            raise
        (folder / FILE).unlink(missing_ok=True)  # makes room for the newer one
        write_text(folder / FILE, text)


def document(title: str, content: Html) -> str:
    """Return a complete HTML document from a title and content."""
    return "<!doctype html>\n" + tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            tag("style", Html(STYLE)),
        ),
        tag("body", tag("main", content)),
        lang="en",
    )


def _when(run: Run) -> str:
    began = datetime.datetime.fromtimestamp(run.process.began, datetime.UTC)
    return f"Began {began:%Y-%m-%d %H:%M:%S} UTC, process {run.process.pid}."
