"""The base classes of options: containers of named values with checked attributes.

A container has a fixed set of public values and a few private attributes. Types, legal values and
defaults come from `poptorch.options._table`; the containers know nothing about what options mean.
"""

import copy
import difflib
import enum
import logging
from typing import Any, Self

from poptorch._error import require
from poptorch.options import _table

_HOUSEKEEPING = frozenset({"_values", "_is_frozen", "_namespaces", "_popart"})
_logger = logging.getLogger("poptorch::python")
_logged: set[str] = set()


def say_once(old: str, instead: str) -> None:
    """Log the first use of a name from a release before 3.4, with its replacement."""
    if old not in _logged:
        _logged.add(old)
        _logger.warning("%s is of an earlier release of PopTorch: %s.", old, instead)


class Freezable:
    """The base class of options objects that can be frozen; deep copies are writable."""

    _is_frozen = False

    def _freeze(self) -> None:
        self._is_frozen = True

    def _unfreeze(self) -> None:
        self._is_frozen = False

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raise AttributeError if this options object is frozen.

        Args:
            option: Name about to be set; the frozen mark itself may always change.
        """
        if self._is_frozen and option != "_is_frozen":
            option_text = f": {option!r} was to be set" if option else ""
            raise AttributeError(
                f"Can't modify frozen Options{option_text}. A DataLoader or a wrapper already uses "
                "this object; change a copy instead: options = options.clone()"
            )

    def __deepcopy__(self, memory: dict[int, Any]) -> Self:
        duplicate = type(self).__new__(type(self))
        memory[id(self)] = duplicate
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memory))
        duplicate._unfreeze()
        return duplicate


class OptionsDict(Freezable):
    """A container of named options, readable as attributes, with type checks on assignment.

    Args:
        **default_values: More values that exist from the start, beside the table's; a leading
            underscore makes a private attribute, which is not part of the dictionary.
    """

    _store = ""  # which rows of the table describe the values; none for a plain container

    def __init__(self, **default_values: Any) -> None:
        self.__dict__.update(_values={}, _is_frozen=False, _namespaces={})
        for name, value in (_table.defaults(self._store) | default_values).items():
            store = self.__dict__ if name.startswith("_") else self._values
            store[name] = value

    def set(self, **kwargs: Any) -> None:
        """Change the values of existing options.

        Args:
            **kwargs: New values by name.

        Raises:
            AssertionError: A name is unknown, or a value has the wrong type or is not legal.
        """
        self._check(kwargs, create=False)
        self._store_all(kwargs)

    def createOrSet(self, **kwargs: Any) -> None:
        """Change the values of options, creating options that do not exist.

        Args:
            **kwargs: Values by name.

        Raises:
            AssertionError: A value has the wrong type or is not legal.
        """
        self._check(kwargs, create=True)
        self._store_all(kwargs)

    def _with(self, **kwargs: Any) -> Self:
        self.set(**kwargs)
        return self

    def _create(self, **kwargs: Any) -> Self:
        self.createOrSet(**kwargs)
        return self

    def exists(self, option: str) -> bool:
        """Return whether an option of this name exists."""
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        """Remove an option by its name, if it exists."""
        self.checkIsFrozen(option)
        self._values.pop(option, None)

    def update(self, other: dict[str, Any]) -> dict[str, Any]:
        """Add all options and their values to a dictionary and return it.

        Args:
            other: The dictionary; enumeration members are added as integers.

        Raises:
            AssertionError: Some names are in both.
        """
        common = sorted(self._values.keys() & other.keys())
        require(not common, f"Can't merge dictionaries, they have keys in common: {common}")
        other.update((name, _plain(value)) for name, value in self._values.items())
        return other

    def toDict(self) -> dict[str, Any]:
        """Return the options as a flat dictionary, enumeration members as integers."""
        return self.update({})

    def __call__(self, option: str) -> Any:
        """Return the value of an option by its name."""
        return getattr(self, option)

    def __getitem__(self, option: str) -> Any:
        if option not in self._values:
            raise KeyError(f"{type(self).__name__} has no {option!r}: {_names(self._values)}")
        return self._values[option]

    def __contains__(self, option: object) -> bool:
        return option in self._values

    def __getattr__(self, option: str) -> Any:
        # Reached only when ordinary lookup fails; `_values` is missing while unpickling.
        values = self.__dict__.get("_values", {})
        if option in values:
            return values[option]
        raise AttributeError(self._no_such_attribute(option))

    def _no_such_attribute(self, option: str) -> str:
        """Return an error message for an unknown option that suggests a similar name."""
        message = f"Invalid attribute {option} of {type(self).__name__}"
        names = _names_by_spelling(self)
        for namespace, values in self.__dict__.get("_namespaces", {}).items():
            names.setdefault(_folded(namespace), namespace)
            for spelling, name in _names_by_spelling(values).items():
                names.setdefault(spelling, f"{namespace}.{name}")
        if near := difflib.get_close_matches(_folded(option), names, n=1, cutoff=0.7):
            return f"{message}. Did you mean {names[near[0]]}?"
        return f"{message}: it has {_names(self.__dict__.get('_values', {}))}"

    def __setattr__(self, option: str, value: Any) -> None:
        if not option.startswith("_"):
            self.set(**{option: value})
            return
        if option not in self.__dict__ and option != "__class__":
            raise AttributeError(f"Invalid private attribute {option} of {type(self).__name__}")
        self.checkIsFrozen(option)
        object.__setattr__(self, option, value)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        private = {k: v for k, v in self.__dict__.items() if k not in _HOUSEKEEPING}
        items = sorted({**self._values, **private}.items())
        parts = [f"{name}={value!r}" for name, value in items]
        parts += [f"{name}={self._namespaces[name]!r}" for name in sorted(self._namespaces)]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _freeze(self) -> None:
        super()._freeze()
        for namespace in self._namespaces.values():
            namespace._freeze()

    def _unfreeze(self) -> None:
        super()._unfreeze()
        for namespace in self._namespaces.values():
            namespace._unfreeze()

    def _check(self, values: dict[str, Any], *, create: bool) -> None:
        for name, value in values.items():
            self.checkIsFrozen(name)
            require(create or name in self._values, self._unknown(name))
            row = _table.find(self._store, name)
            _check_type(name, value, self._expected_type(name, row))
            if row is not None and row.legal is not None:
                require(
                    value in row.legal,
                    f"Invalid value {value!r} for option {name}: it must be {_words(row.legal)}",
                )

    def _expected_type(self, name: str, row: _table.Row | None) -> Any:
        if row is not None and not isinstance(row.type, str):
            return row.type
        return type(self._values[name]) if name in self._values else object

    def _store_all(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            # Booleans and enumeration members may stand for an int option; keeping them as they
            # are would turn the option's type into theirs.
            self._values[name] = int(value) if type(self._values.get(name)) is int else value

    def _unknown(self, name: str) -> str:
        if callable(getattr(type(self), name, None)):
            return f"Invalid option {name}: it is a method, call options.{name}(...)"
        return f"Invalid option {name}: the options here are {_names(self._values)}"


def _check_type(name: str, value: Any, expected: Any) -> None:
    require(
        isinstance(value, expected),
        f"Unexpected type {type(value).__name__} for option {name}: {value!r} was given, "
        f"{_type_words(expected)} is needed",
    )


def _type_words(expected: Any) -> str:
    kinds = expected if isinstance(expected, tuple) else (expected,)
    return " or ".join(kind.__name__ for kind in kinds)


def _names_by_spelling(options: Any) -> dict[str, str]:
    """Return public option names by normalized spelling, preferring methods to values."""
    names = [*vars(options).get("_values", {}), *dir(type(options))]
    return {_folded(name): name for name in names if not name.startswith("_")}


def _folded(name: str) -> str:
    """Normalize an option's name: lower case without underscores."""
    return name.replace("_", "").lower()


def _names(values: dict[str, Any]) -> str:
    return ", ".join(sorted(values)) or "none"


def _words(legal: Any) -> str:
    return " or ".join(map(repr, legal)) if isinstance(legal, tuple) else str(legal)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.IntEnum):
        return value.value
    return value.toDict() if isinstance(value, OptionsDict) else value
