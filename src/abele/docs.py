"""Command ``abele docs``: the documentation's pages, which wheels contain."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from abele.errors import AbeleError

_HERE = Path(__file__).parent
#: The pages of a wheel, then those of a checkout.
_FOLDERS = (_HERE / "_docs", _HERE.parents[1] / "docs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele docs`` to its parser."""
    parser.description = (
        "Prints a page of the documentation as Markdown. Without a page, lists all. PAGE#ANCHOR "
        "prints the lines with that anchor."
    )
    parser.add_argument("page", nargs="?", metavar="PAGE", help="name or path of a page")


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele docs``; return its exit status.

    Raises:
        AbeleError: there is no such page or anchor, or no pages are installed.
    """
    found = pages()
    if parsed.page is None:
        width = max(map(len, found))
        print("\n".join(f"{name:<{width}}  {_title(path)}" for name, path in found.items()))
        return 0
    name, _, anchor = parsed.page.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md")
    name = name if name in found else f"reference/{name}"
    if name not in found:
        name = name.removeprefix("reference/")
        near = difflib.get_close_matches(name, found, 1)
        hint = f"Did you mean {near[0]}?" if near else "abele docs lists all pages."
        raise AbeleError(f"There is no page {name!r}. {hint}")
    text = found[name].read_text(encoding="utf-8")
    print(_lines_at(text, anchor, parsed.page) if anchor else text.rstrip("\n"))
    return 0


def pages() -> dict[str, Path]:
    """Return the pages by name, guides before the reference.

    Raises:
        AbeleError: neither the wheel's folder nor a checkout's exists.
    """
    folder = next((each for each in _FOLDERS if each.is_dir()), None)
    if folder is None:
        raise AbeleError(f"No pages are installed: {' and '.join(map(str, _FOLDERS))} are missing.")
    paths = [*sorted(folder.glob("*.md")), *sorted(folder.glob("reference/*.md"))]
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in paths)
    return {name: path for name, path in zip(names, paths, strict=True) if path.stem != "README"}


def _title(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.strip("# ") for line in lines if line.startswith("# ")), "")


def _lines_at(text: str, anchor: str, asked: str) -> str:
    mark = f'<a id="{anchor}"></a>'
    lines = [line.replace(mark, "") for line in text.splitlines() if mark in line]
    if not lines:
        raise AbeleError(f"{asked} names no anchor of the page.")
    return "\n".join(lines)
