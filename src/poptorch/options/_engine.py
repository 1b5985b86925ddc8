"""Report settings among the engine options: which reports to write, and where.

They come from ``options.enableProfiling``, from ``options._Popart.setEngineOptions`` and from the
environment variable POPLAR_ENGINE_OPTIONS, whose values win.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poptorch._error import error
from poptorch.options import Options

ENVIRONMENT = "POPLAR_ENGINE_OPTIONS"
_REPORT = "autoReport."
_PARTS = ("GraphProfile", "ExecutionProfile", "LoweredVars", "DebugInfo", "SerializedGraph")


@dataclass(frozen=True)
class Report:
    """The report settings of a model.

    Attributes:
        folder: folder of this model's report; created on demand.
        timed: also time the operators once the run has ended well.
    """

    folder: Path
    timed: bool


def engine_options(options: Options) -> dict[str, str]:
    """Return all engine options by name; the environment's override the program's.

    Raises:
        poptorch.Error: POPLAR_ENGINE_OPTIONS is not a JSON object.
    """
    stored: dict[str, str] = options._Popart.options.get("engineOptions", {})
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return dict(stored)
    try:
        from_environment = json.loads(text)
    except ValueError as problem:
        raise error(_unreadable(text, str(problem))) from None
    if not isinstance(from_environment, dict):
        raise error(_unreadable(text, "it is no object"))
    return {**stored, **from_environment}


def _unreadable(text: str, why: str) -> str:
    return (
        f"{ENVIRONMENT}={text!r} cannot be read: {why}. Give a JSON object of strings such as "
        '{"autoReport.all": "true"}, or unset it.'
    )


def report_wanted(options: Options, training: bool) -> Report | None:
    """Return the settings of a model's report, or None if no report is requested.

    Raises:
        poptorch.Error: POPLAR_ENGINE_OPTIONS cannot be read.
    """
    settings = engine_options(options)
    everything = _is_true(settings.get(f"{_REPORT}all", "false"))
    parts = {
        part for part in _PARTS if _is_true(settings.get(f"{_REPORT}output{part}", str(everything)))
    }
    if not parts:
        return None
    name = options.model_name if options.exists("model_name") else None
    folder = settings.get(f"{_REPORT}directory", ".")
    if not isinstance(folder, str):
        raise error(f"{_REPORT}directory must be a path, found {folder!r}.")
    return Report(
        folder=Path(folder) / (name or ("training" if training else "inference")),
        timed="ExecutionProfile" in parts,
    )


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "on", "yes")
