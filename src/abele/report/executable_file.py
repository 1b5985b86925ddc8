"""The programs of a run with their compiled code, kept beside its record so that they can be timed.

What is in ``executable`` are the programs after all passes, as data, and the code that ran. They
run again on the same kind of machine with the same torch; weights are not in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from abele.compile import keys
from abele.compile.executable import Executable
from abele.compile.serialization import from_members, to_members
from abele.errors import AbeleError, ReportError
from abele.storage import container
from abele.storage.container import Container
from abele.targets import get_target

FILE = "executable"
KIND = "abele programs of a run"


def write(folder: Path, made: Executable) -> None:
    """Write the programs that run now, in the place of those that ran before.

    Args:
        folder: of the run.
        made: what runs.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
        SerializationError: a program calls an operator that cannot be stored.
    """
    (folder / FILE).unlink(missing_ok=True)
    programs = [made.lowered(each.name) for each in made.programs]
    members = to_members(programs)
    members |= {f"code/{each.name}": made.compiled[each.name].payload for each in programs}
    content = {
        "target": made.target.name,
        "machine": _described(made),
        "lowerings": {each.name: made.lowering(each.name).name for each in programs},
        "programs": {each.name: each.fingerprint() for each in programs},
    }
    container.write(folder / FILE, KIND, content, members)


def _described(made: Executable) -> dict[str, Any]:
    return json.loads(json.dumps(made.target.describe(), sort_keys=True))


def read(folder: Path) -> Executable:
    """Read the programs of a run and load their code.

    Args:
        folder: of the run.

    Raises:
        ReportError: they are gone, damaged, or made for another machine.
    """
    try:
        with Container(folder / FILE, KIND) as file:
            return _loaded(file)
    except FileNotFoundError:
        raise ReportError(
            f"The executable of the run in {folder} is gone, or was never kept: there is no file "
            f"{FILE!r}. Run the program again; its report times operators at the end."
        ) from None
    except (OSError, RuntimeError, AbeleError, KeyError, TypeError) as error:
        raise ReportError(
            f"The executable of the run in {folder} cannot be used here: {error}. Run the program "
            "again; its report times operators at the end."
        ) from error


def _loaded(file: Container) -> Executable:
    content = file.content
    target = get_target(content["target"])
    here = json.loads(json.dumps(target.describe(), sort_keys=True))
    if here != content["machine"]:
        different = "; ".join(keys.differences(content["machine"], here))
        raise ReportError(f"it was made for another machine or version: {different}")
    programs = from_members(file, content["programs"])
    parts = {"lowerings": content["lowerings"], "target": here}
    compiled = {
        each.name: target.lowering(content["lowerings"][each.name]).load(
            each, file.read(f"code/{each.name}")
        )
        for each in programs
    }
    return Executable(
        key=keys.key_of(parts),
        key_parts=parts,
        programs=programs,
        compiled=compiled,
        target=target,
    )
