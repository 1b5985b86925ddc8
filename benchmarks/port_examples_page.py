"""Table rows of what ``port_examples.py`` finds."""

from __future__ import annotations

from typing import Any


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
