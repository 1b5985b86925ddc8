"""What a record of ``port_examples.py`` says: the table of ``docs/port_examples.md``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "port_examples.md"
BEGIN, END = "<!-- written by benchmarks/port_examples.py -->", "<!-- end of what it writes -->"
HEAD = (
    "| example | asked | given | lines changed | losses equal | seconds |",
    "|---|---|---|---|---|---|",
)


def renew(result: dict[str, Any], record: str) -> None:
    """Replace the table of the page and what follows it."""
    link = f"From [`{record}`](../benchmarks/records/{record})."
    named = [f"- `{each['name']}`: {text}" for each in result["examples"] for text in _more(each)]
    body = "\n".join([BEGIN, link, "", *HEAD, *map(row, result["examples"]), "", *named, END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: body, PAGE.read_text()))


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
