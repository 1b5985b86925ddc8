"""An argument parser whose errors name what was probably meant."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

_CHOICE = re.compile(r"invalid choice: '([^']*)'")


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests a command, option or choice where one is misspelt.

    Python's own suggestions, since 3.14, are of commands and choices alone.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.suggest_on_error = False
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse arguments as argparse does, and remember them for an error."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the usage, the error and what was probably meant; end with exit status 2."""
        known = [*known_words(self)]
        words = self._words[: self._words.index("--")] if "--" in self._words else self._words
        options = [each.partition("=")[0] for each in words if each.startswith("--")]
        unknown = [word for word in options if not any(each.startswith(word) for each in known)]
        pairs = [
            (word, *difflib.get_close_matches(word, known, 1))
            for word in (*_CHOICE.findall(message), *unknown)
        ]
        meant = ", ".join(f"{pair[1]} for {pair[0]}" for pair in pairs if len(pair) > 1)
        super().error(f"{message}. Did you mean {meant}?" if meant else message)


def known_words(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the option strings and choices of a parser and of its subcommands."""
    untyped: Any = parser  # argparse has no public list of arguments
    for action in untyped._actions:
        yield from action.option_strings
        yield from map(str, action.choices or ())
        for inner in getattr(action.choices, "values", tuple)():
            yield from known_words(inner)
