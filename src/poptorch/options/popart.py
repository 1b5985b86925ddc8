"""`Options._Popart`: settings addressed to the original's compiler by name.

Programs set many of these. They are stored without judgement, as in the original, and looked at
when a model is compiled: `check_keys` finds misspelt ones, the option table says what each does.
"""

from typing import Any, Self

from poptorch._error import error, require
from poptorch.options import _table
from poptorch.options._container import Freezable

_CONTAINERS = (list, set, tuple, dict)


class _PopartOptions(Freezable):
    """Settings by name; `options` is the dictionary of those that were set."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = _table.defaults("_Popart")

    def set(self, key: str, value: Any) -> Self:
        """Store a setting; its name and type are checked when a model is compiled.

        Args:
            key: Name of the setting.
            value: A bool, int, float, string, or a list, set or dictionary of strings.
        """
        self.checkIsFrozen(key)
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Store settings of the original's backend, replacing earlier ones.

        Differs from the original: ``autoReport.*`` choose the report of ``enableProfiling``; the
        others have no effect.

        Args:
            engine_options: Values by name, all of them strings.
        """
        return self.set("engineOptions", engine_options)

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Choose the graph rewrites of the original's compiler.

        Differs from the original: no effect; that compiler is not here.

        Args:
            patterns: Switches by name, applied on top of the level.
            level: 0 (none) to 3 (all).

        Raises:
            AssertionError: An argument of another type.
        """
        require(isinstance(level, int), f"level must be an int, not {level!r}")
        require(isinstance(patterns, dict), f"patterns must be a dict, not {patterns!r}")
        self.set("patterns", patterns)
        return self.set("patterns_level", level)

    def check_keys(self) -> None:
        """Raise poptorch.Error if a setting has an unknown name or a value of the wrong type."""
        for key, value in self.options.items():
            row = _table.find("_Popart", key)
            if row is not None and _kind(value) == _row_kind(row):
                continue
            hint = f"it takes a {_row_kind(row)}" if row else "no setting has this name"
            raise error(f"Unknown {_kind(value)} option {key!r} given {value!r}: {hint}")

    def __repr__(self) -> str:
        parts = [f"{key}={_text(value)}" for key, value in sorted(self.options.items())]
        return f"_PopartOptions({', '.join(parts)})"


def _kind(value: Any) -> str:
    if isinstance(value, _CONTAINERS):
        return "container"
    # bool before int, which it is a kind of
    kinds = (kind for kind in (bool, int, float, str) if isinstance(value, kind))
    return next(kinds, type(value)).__name__


def _row_kind(row: _table.Row) -> str:
    if isinstance(row.type, type) and row.type not in _CONTAINERS:
        return row.type.__name__
    return "container"


def _text(value: Any) -> str:
    # Sets print in an order that changes from one process to the next.
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return repr(value)
