"""Options from outside the program: a file of setter calls, or a JSON object.

Both end in calls of public setters, so every check of those applies.
"""

import json
import sys
from pathlib import Path
from typing import Any

from poptorch import enums
from poptorch._error import require


class ConfigFileError(Exception):
    """The error for an invalid file given to `Options.loadFromFile`."""


def load_file(options: Any, filepath: str) -> None:
    """Execute a file of options setter calls on `options`.

    Each line that is neither empty nor a comment continues the word `options.`: a call, a call on
    a namespace, or an assignment. The lines run as Python, so only trusted files may be loaded.

    Raises:
        ConfigFileError: The file is not valid Python; nothing has been executed.
    """
    stripped = (line.strip() for line in Path(filepath).read_text(encoding="utf-8").splitlines())
    lines = [line for line in stripped if line and not line.startswith("#")]
    source = "\n".join(f"options.{line}" for line in lines)
    try:
        code = compile(source, filepath, "exec")
    except SyntaxError as problem:
        number = problem.lineno or len(lines)
        raise ConfigFileError(
            f"SyntaxError at line {number} of {Path(filepath).name}: {problem.msg}\n"
            f"> {lines[number - 1]}"
        ) from problem
    # By its name: the package imports this module.
    exec(code, {"poptorch": sys.modules["poptorch"], "options": options})


def apply_json(options: Any, text: str) -> None:
    """Set options from a JSON object of setter names and arguments.

    Keys are names of setters, with dots for namespaces ("Training.gradientAccumulation"). A list
    is spread over the setter's arguments; a string such as "OutputMode.All" becomes that member.
    """
    require(isinstance(text, str | bytes), f"Options in JSON must be a string, not {text!r}")
    entries = json.loads(text)
    require(isinstance(entries, dict), f"Options in JSON must be an object, not {text!r}")
    for path, value in entries.items():
        setter = options
        for name in path.split("."):
            setter = getattr(setter, name)
        require(callable(setter), f"{path} in {text!r} is a value: name a setter instead")
        arguments = value if isinstance(value, list) else [_enum_member(value)]
        setter(*arguments)


def _enum_member(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    name, _, member = value.partition(".")
    enumeration = vars(enums).get(name)
    members = getattr(enumeration, "__members__", {})
    return members.get(member, value)
