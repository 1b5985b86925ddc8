"""Writes the page of a port: its verdict, what is left to do, and each file, old beside new."""

from __future__ import annotations

import collections
import difflib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from abele.port.engine import Port
from abele.port.finding import Finding, Verdict, docs_of
from abele.port.rules import CODES
from abele.report.page import document
from abele.report.page.markup import Content, Html, facts, folded, html, section, table, tag

_CONTEXT = 3


def page(result: Port, name: str) -> str:
    """Return the page of a port as HTML.

    Args:
        result: of the port.
        name: of the program.
    """
    parts: list[Content] = [tag("h1", f"Port of {name}"), _verdict(result)]
    if result.unfinished:
        todo = _list(result.unfinished)
        parts.append(section("To be done by hand", todo, name="todo"))
    files: list[Content] = [
        _file(result, file) for file, text in result.before.items() if text != result.after[file]
    ]
    if files:
        parts.append(section("What changes", *files, name="changes"))
    parts.append(section("Every line that was looked at", _list(result.findings), name="lines"))
    same = [file for file, text in result.before.items() if text == result.after[file]]
    if same:
        text = ", ".join(same)
        parts.append(section("Files that stay", tag("p", text), name="same"))
    used = sorted({each.code for each in result.findings})
    rows: list[list[Content]] = [
        [tag("b", code, id=code), CODES[code], tag("code", docs_of(code))] for code in used
    ]
    parts.append(section("Codes", table([], rows), name="codes"))
    return document(f"Port of {name}", html(parts))


def _link(code: str) -> Html:
    return tag("a", code, href=f"#{code}", title=CODES[code])


def _verdict(result: Port) -> Html:
    counts = collections.Counter(each.verdict for each in result.findings)
    good = result.runs and result.verdict in (Verdict.MATCH, Verdict.MODIFIED)
    rows: list[tuple[str, Content]] = [(each.value, counts[each]) for each in Verdict]
    sentence = tag("b", result.sentence, class_="good" if good else "bad")
    return html(tag("p", sentence, class_="lead"), facts(rows))


def _list(findings: Sequence[Finding]) -> Html:
    rows: list[list[Content]] = [
        [
            f"{each.path}:{each.line}",
            _link(each.code),
            each.verdict.value,
            html(tag("code", each.text), tag("br"), each.reason),
        ]
        for each in findings
    ]
    return table(["line", "code", "verdict", "what it says, and why"], rows)


class _Row(NamedTuple):
    """A line of the old text beside one of the new, each with its number; 0 where there is none."""

    old: int
    before: str
    new: int
    after: str
    changed: bool


def _file(result: Port, name: str) -> Html:
    """A file, old beside new, with what is said of changed lines under them."""
    before, after = result.before[name].splitlines(), result.after[name].splitlines()
    said: dict[int, list[Finding]] = {}
    for each in result.findings:
        if each.path == name:
            said.setdefault(each.line, []).append(each)
    groups: list[Content] = []
    for rows in _groups(before, after):
        lines = [line for row in rows for line in _lines(row, said)]
        said_of = "lines of the original with their numbers, then those of the port"
        groups.append(tag("table", tag("tbody", lines), class_="sides", aria_label=said_of))
    return folded(tag("b", name), *groups, open_=True)


def _groups(before: Sequence[str], after: Sequence[str]) -> Iterator[list[_Row]]:
    """Rows of changed lines with a few unchanged ones around them."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        rows: list[_Row] = []
        for kind, old, old_end, new, new_end in group:
            for index in range(max(old_end - old, new_end - new)):
                left, right = old + index, new + index
                rows.append(
                    _Row(
                        left + 1 if left < old_end else 0,
                        before[left] if left < old_end else "",
                        right + 1 if right < new_end else 0,
                        after[right] if right < new_end else "",
                        kind != "equal",
                    )
                )
        yield rows


def _lines(row: _Row, said: dict[int, list[Finding]]) -> Iterator[Html]:
    """A row of the table, and one for each thing said of its old line."""
    yield tag(
        "tr",
        tag("td", row.old or "", class_="number"),
        tag("td", tag("code", row.before), class_="out" if row.changed and row.old else None),
        tag("td", row.new or "", class_="number"),
        tag("td", tag("code", row.after), class_="in" if row.changed and row.new else None),
    )
    reasons = {(each.code, each.verdict, each.reason) for each in said.get(row.old, ())}
    for code, verdict, reason in sorted(reasons):
        note = html(_link(code), f" {verdict.value}: {reason}")
        yield tag("tr", tag("td"), tag("td", note, colspan=3, class_="soft note"))
