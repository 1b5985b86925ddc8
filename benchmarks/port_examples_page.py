"""What records of ``port_examples.py`` say: the table of ``docs/port_examples.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RECORDS
from benchmarks.port_examples_list import EXAMPLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "port_examples.md"
BEGIN, END = "<!-- written by benchmarks/port_examples.py -->", "<!-- end of what it writes -->"
HEAD = (
    "| example | asked | given | lines changed | losses equal | seconds |",
    "|---|---|---|---|---|---|",
)


def renew(page: Path = PAGE, folder: Path = RECORDS) -> None:
    """Replace the table of the page and what follows it: of each example the newest that is known.

    Args:
        page: with the table.
        folder: of the records.
    """
    newest = _newest(folder)
    results = [result for _, result in newest.values()]
    named = [f"- `{each['name']}`: {text}" for each in results for text in _more(each)]
    body = "\n".join([BEGIN, _links(newest), "", *HEAD, *map(row, results), "", *named, END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    page.write_text(pattern.sub(lambda _: body, page.read_text()))


def _newest(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """The newest result of each example by its name, in the order of the list, and its record."""
    newest: dict[str, tuple[str, dict[str, Any]]] = {}
    records = [(path, json.loads(path.read_text())) for path in folder.glob("port-examples_*.json")]
    for path, record in sorted(records, key=_age):
        for each in record["examples"]:
            newest[each["name"]] = path.name, each
    return {each.name: newest[each.name] for each in EXAMPLES if each.name in newest}


def _age(entry: tuple[Path, dict[str, Any]]) -> str:
    """When a record was written; those that do not say it are older than others of their day."""
    return entry[1].get("written", entry[1]["environment"]["date"])


def _links(newest: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """Which record has which rows; the first has those that are not named."""
    names: dict[str, list[str]] = {}
    for name, (record, _) in newest.items():
        names.setdefault(record, []).append(name)
    most, *others = sorted(names, key=lambda record: -len(names[record]))
    parts = [_link(most), *(f"{_listed(names[each])} from {_link(each)}" for each in others)]
    return f"From {'; '.join(parts)}."


def _link(record: str) -> str:
    return f"[`{record}`](../benchmarks/records/{record})"


def _listed(names: Sequence[str]) -> str:
    *some, last = (f"`{each}`" for each in names)
    return f"{', '.join(some)} and {last}" if some else last


def row(example: dict[str, Any]) -> str:
    """One example as a row of the table."""
    asked = f"{example['asked']}, {len(example['edits'])} edited" if example["edits"] else ""
    given = example["verdict"]
    if example["named"]:
        count = len(example["named"])
        given = f"{given}, {count} {'line' if count == 1 else 'lines'} named"
    cells = (
        f"`{example['name']}`", asked or example["asked"], given,
        f"{example['changed']} of {example['lines']}", _equal(example),
        f"{example['port_cpu_s']:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _equal(example: dict[str, Any]) -> str:
    if "error" in example:
        return f"not compared: {example['error'].splitlines()[0]}"
    if "equal_losses" not in example:
        return "not run" if example["verdict"] == "blocked" else "not compared"
    if example["difference"] is None:
        return f"{example['equal_losses']}, and {example['tensors']} tensors"
    return f"{example['equal_losses']}; {example['difference']}"


def _more(example: dict[str, Any]) -> list[str]:
    """What a reader needs beside the table: edits, and lines that are named."""
    named = [f"`{each}`" for each in example["named"]]
    return [f"edited: {each}" for each in example["edits"]] + named
