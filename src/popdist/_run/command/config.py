"""Options as a file: ``--export-config`` writes it, ``--import-config`` reads it."""

import contextlib
import difflib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from popdist._run.command.options import BY_NAME, CONFIG
from popdist._run.command.parsing import convert
from popdist._run.problems import Problem


def read(path: str) -> dict[str, Any]:
    """Read options from a JSON object whose keys are names without dashes in front.

    Args:
        path: The file.

    Returns:
        Values by key of the option.

    Raises:
        Problem: The file cannot be read, or holds something else.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Problem(f"--import-config {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise Problem(f"--import-config {path} is not JSON: {error}.") from error
    if not isinstance(entries, dict):
        raise Problem(
            f'--import-config {path} should hold an object such as {{"num-instances": 2}}.'
        )
    return dict(_entry(path, name, value) for name, value in entries.items())


def _entry(path: str, name: str, value: Any) -> tuple[str, Any]:
    option = BY_NAME.get(name)
    if option is None or option.group == CONFIG:
        near = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise Problem(f"--import-config {path} names {name!r}, which is no option.{hint}")
    if option.name == "verbose" and isinstance(value, int):
        return option.key, int(value)
    if option.repeats:
        values = value if isinstance(value, list) else [value]
        return option.key, [convert(option, one) for one in values]
    return option.key, convert(option, value)


def write(path: str, values: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write the options that were given, all at once or not at all.

    Args:
        path: The file.
        values: Values by key of the option.
        overwrite: Whether an existing file may be replaced.

    Raises:
        Problem: The file exists, or cannot be written.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise Problem(
            f"--export-config {path} exists; choose another name, or add --overwrite-config yes."
        )
    entries = {
        option.name: values[option.key]
        for option in BY_NAME.values()
        if option.key in values and option.group != CONFIG
    }
    try:
        _replace(target, json.dumps(entries, indent=2) + "\n")
    except OSError as error:
        raise Problem(f"--export-config {path} cannot be written: {error.strerror}.") from error


def _replace(target: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
