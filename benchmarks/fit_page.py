"""What the cells of ``fit.py`` say together, and the part of notes/fit.md that says it."""

from __future__ import annotations

import collections
import re
import statistics
import textwrap
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "notes" / "fit.md"
BEGIN, END = "<!-- written by benchmarks/fit.py -->", "<!-- end of what it writes -->"
_MIB = 2**20
_WIDTH = 140  # of a line of text


def line(facts: dict[str, Any]) -> str:
    """One cell for people."""
    refused = f" refused: {facts['refused'][:60]}" if "refused" in facts else ""
    if "measured" not in facts:
        return refused
    estimate = facts["estimate"]
    return (
        f"{facts['measured'] / _MIB:6.1f} MiB, {memory_error(facts):+.1%} expected, "
        f"{estimate['low'] / _MIB:.0f} to {estimate['high'] / _MIB:.0f}{refused}"
    )


def memory_error(facts: dict[str, Any]) -> float:
    """Return the relative error of the expected value."""
    return facts["estimate"]["expected"] / facts["measured"] - 1


def errors(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By way: relative errors of what was expected, and how good its intervals are.

    A cell of which there is no number counts as tried; ``limited`` are runs under the limit that
    the estimate calls enough, ``refused`` those of them that wanted more or ended otherwise.
    """
    result: dict[str, dict[str, float]] = {}
    for way in dict.fromkeys(each["way"] for each in cells):
        tried = [each for each in cells if each["way"] == way]
        known = [each for each in tried if "measured" in each]
        if not known:
            continue
        memory = [abs(memory_error(each)) for each in known]
        limited = [each for each in tried if each.get("limited") or "refused" in each]
        result[way] = {
            "tried": len(tried),
            "cells": len(known),
            "memory, median": round(statistics.median(memory), 4),
            "memory, worst": round(max(memory), 4),
            "inside": round(statistics.mean(map(_inside, known)), 3),
            "width, worst": round(max(map(_width, known)), 3),
            "width, median": round(statistics.median(map(_width, known)), 3),
            "limited": len(limited),
            "refused": sum("refused" in each for each in limited),
        }
    return result


def _inside(facts: dict[str, Any]) -> bool:
    # A process's memory is known to a page or so for each tensor.
    off = 0.005 * facts["measured"]
    return facts["estimate"]["low"] - off <= facts["measured"] <= facts["estimate"]["high"] + off


def _width(facts: dict[str, Any]) -> float:
    estimate = facts["estimate"]
    return (estimate["high"] - estimate["low"]) / facts["measured"]


def lines(result: dict[str, Any]) -> list[str]:
    """Return the result as lines of text."""
    cells, errors_of = result["cells"], result["errors"]
    names = [list(dict.fromkeys(each[key] for each in cells)) for key in ("model", "setting")]
    limited, refused = (
        sum(each[key] for each in errors_of.values()) for key in ("limited", "refused")
    )
    cells_of = (
        f"{len(cells)} cells: {len(names[0])} models ({', '.join(names[0])}), {len(names[1])} "
        f"settings ({', '.join(names[1])}), {len(errors_of)} ways to run them."
    )
    runs = f"{limited} processes ran under their limit, {refused or 'none'} of them wanted more."
    summary = [cells_of, runs]
    commits = collections.Counter(each.get("commit") for each in cells)
    if len(commits) > 1:
        parts = (f"{count} of commit {commit}" for commit, count in commits.items())
        summary.append(f"They were not all measured at once: {', '.join(parts)}.")
    head = ["way", "cells", "memory off, median", "worst", "inside the interval"]
    head += ["its width, median", "worst"]
    said = [
        *textwrap.wrap(" ".join(summary), _WIDTH),
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for way, of in errors_of.items():
        keys = ("memory, median", "memory, worst", "inside", "width, median", "width, worst")
        shares = [f"{of[key]:.1%}" for key in keys]
        said.append(f"| {' | '.join([way, str(of['cells']), *shares])} |")
    return [*said, *_by_setting(cells)]


def _by_setting(cells: list[dict[str, Any]]) -> list[str]:
    """Return how far memory is off: medians over the models of each setting."""
    ways = list(dict.fromkeys(each["way"] for each in cells))
    head = " | ".join(ways)
    said = ["", f"| setting, median | {head} |", "|---" * (len(ways) + 1) + "|"]
    for setting in dict.fromkeys(each["setting"] for each in cells):
        columns: list[str] = []
        for way in ways:
            known = [
                each
                for each in cells
                if (each["way"], each["setting"]) == (way, setting) and "measured" in each
            ]
            off = [abs(memory_error(each)) for each in known]
            columns.append(f"{statistics.median(off):.1%}" if off else "-")
        said.append(f"| {' | '.join([setting, *columns])} |")
    return said


def renew(result: dict[str, Any], record: str) -> None:
    """Replace the numbers of the page."""
    link = f"From [`{record}`](../records/{record}):"
    body = "\n".join([BEGIN, link, "", *lines(result), END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: body, PAGE.read_text()))
