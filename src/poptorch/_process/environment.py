"""The environment variables of the original: their effect here, and a check of those that are set.

One table, from which `docs/compatibility.md` and the checks are made. Nothing is silent: a variable
that is set without effect, or whose text cannot be read, is reported once.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from poptorch._logging import logger


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Args:
        name: As in the shell.
        effect: Whether setting it changes anything.
        note: What it does, or why ignoring it is harmless.
        json: Its text is a JSON object.
    """

    name: str
    effect: bool
    note: str
    json: bool = False


_LEVEL = "levels of libraries that are not here; use POPTORCH_LOG_LEVEL"

VARIABLES = (
    Variable("POPTORCH_LOG_LEVEL", True, "TRACE, DEBUG, INFO, WARN, ERR or OFF"),
    Variable("POPTORCH_LOG_DEST", True, "stdout, stderr (default) or a file"),
    Variable("POPTORCH_CACHE_DIR", True, "default of options.enableExecutableCaching"),
    Variable("POPTORCH_DEFAULT_OPTIONS", True, "JSON of setters, see Options.from_json", json=True),
    Variable("POPTORCH_IPU_MODEL", True, "no hardware counts as available; models run as ever"),
    Variable("POPTORCH_SMALL_IPU_MODEL", True, "as POPTORCH_IPU_MODEL"),
    Variable("POPTORCH_IPU_MODEL_VERSION", False, "there is no simulator whose version matters"),
    Variable("POPTORCH_WAIT_FOR_IPU", False, "devices are shared, so there is nothing to wait for"),
    Variable("POPTORCH_EXPORT_PROTO_FILE", True, "programs are written there as text"),
    Variable("POPTORCH_EXPORT_PROTO_AS_BINARY", False, "programs are written as text"),
    Variable("POPTORCH_MAX_GRAPH_LEN", False, "no graph is printed in the log"),
    Variable("PVTI_OPTIONS", True, "JSON that turns profiling on, before import", json=True),
    Variable("POPLAR_ENGINE_OPTIONS", True, "its autoReport.* entries write a report", json=True),
    Variable("POPLAR_TARGET_OPTIONS", False, "describes IPUs", json=True),
    Variable("POPLAR_LOG_LEVEL", False, _LEVEL),
    Variable("POPART_LOG_LEVEL", False, _LEVEL),
    Variable("POPLIBS_LOG_LEVEL", False, _LEVEL),
)  # fmt: skip

_reported: set[str] = set()


def is_set(name: str) -> bool:
    """Return whether a switch is on: set, and neither empty nor ``0``."""
    return os.environ.get(name, "") not in ("", "0")


def json_object(name: str) -> Mapping[str, object]:
    """Return the JSON object a variable holds; empty, with one warning, if it cannot be read."""
    text = os.environ.get(name, "")
    if not text:
        return {}
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            return value
        problem = f"it holds a {type(value).__name__}"
    except json.JSONDecodeError as error:
        problem = str(error)
    _once(f"{name}={text!r} is ignored: it should be a JSON object, but {problem}.")
    return {}


def check() -> None:
    """Report variables that are set without effect or cannot be read, each once."""
    for variable in VARIABLES:
        if not os.environ.get(variable.name):
            continue
        if not variable.effect:
            _once(f"{variable.name} has no effect here: {variable.note}.")
        # POPTORCH_DEFAULT_OPTIONS is an error where options are made, not a warning here.
        elif variable.json and variable.name != "POPTORCH_DEFAULT_OPTIONS":
            json_object(variable.name)


def _once(text: str) -> None:
    if text not in _reported:
        _reported.add(text)
        logger.warning(text)
