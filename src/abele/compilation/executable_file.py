"""The file of an executable: the container members, and how they are saved and loaded.

``code/NAME`` is a program's compiled code, and ``plans/NAME`` its call plan, if the lowering has
one. It is native code, so trust it like a program, not like data.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from abele import passes
from abele.compilation import verdict as verdicts
from abele.compilation.executable import ChosenLowering, Executable, lowerings_of
from abele.compilation.keys import following, key_of, reasons_of, why_other
from abele.errors import AbeleError, CorruptExecutable, ForeignExecutable, SerializationError
from abele.program import Program
from abele.storage import container
from abele.storage.container import Container
from abele.targets import Compiled, Target

KIND = "abele executable"
SUFFIX = ".abele"


def to_container(made: Executable) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Serialize an executable as JSON values for a manifest and as container members."""
    members: dict[str, bytes] = {}
    for name, compiled in made.compiled.items():
        members[f"code/{name}"] = compiled.payload
        if compiled.plan is not None:
            members[f"plans/{name}"] = compiled.plan.encode()
    content = {
        "key_parts": dict(made.key_parts),
        "chosen": {name: dataclasses.asdict(each) for name, each in made.chosen.items()},
        "verdict": verdicts.to_data(made.verdict),
    }
    return content, members


def save(made: Executable, path: Path) -> None:
    """Write an executable to a file, completely or not at all.

    Raises:
        OSError: the folder is not writable, or the disk is full; nothing is left behind.
    """
    container.write(path, KIND, *to_container(made))


def key_parts_in(path: Path) -> dict[str, Any]:
    """Return the key parts of an executable file.

    Raises:
        CorruptExecutable: the file is damaged or is not an executable.
        OSError: there is no such file, or it may not be read.
    """
    with _opened(path) as file:
        return dict(file.content["key_parts"])


def load(
    path: Path, programs: Sequence[Program], parts: Mapping[str, Any], target: Target
) -> Executable:
    """Restore an executable with its programs from a file.

    Raises:
        CorruptExecutable: the file is damaged.
        ForeignExecutable: it is sound but made for other programs, torch or hardware.
    """
    with _opened(path) as file:
        reason = why_other(file.content["key_parts"], parts)
        if reason:
            raise ForeignExecutable(
                f"{path} was made for something else: {reason}. "
                "Compile here, or load it where it was made."
            )
        return from_container(file, file.content, programs, parts, target)


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Container]:
    """Open an executable file; raise CorruptExecutable for any malformed content."""
    try:
        with Container(path, KIND) as file:
            yield file
    except Exception as error:  # contents that mean nothing can fail in any way
        damaged = isinstance(error, CorruptExecutable | SerializationError)
        if isinstance(error, AbeleError | OSError) and not damaged:
            raise
        cause = error.__cause__ or error
        raise CorruptExecutable(
            f"{path} is not a readable executable ({type(cause).__name__}: {cause}). "
            "Delete it; it will be rebuilt."
        ) from error


def from_container(
    file: Container,
    content: Mapping[str, Any],
    programs: Sequence[Program],
    parts: Mapping[str, Any],
    target: Target,
) -> Executable:
    """Restore an executable from a container: load each program's code by its lowering.

    Args:
        file: has the code.
        content: what ``to_container`` returned for the manifest.
        programs: see ``key_parts``.
        parts: of the executable that is wanted; the manifest says how programs are lowered.
        target: the target of the executable.

    Raises:
        ForeignExecutable: the target has no lowering of that name, or the code is of another one.
        CorruptExecutable: it is not said which of several lowerings made the code, or a plan is
            damaged.
        RuntimeError: the code cannot be loaded.
    """
    parts = {**parts, **following(content["key_parts"])}
    chosen = {
        str(name): ChosenLowering(name=str(each["name"]), reason=str(each["reason"]))
        for name, each in content.get("chosen", {}).items()
    }
    lowered: list[Program] = []
    compiled: dict[str, Compiled] = {}
    planned: set[str] = set()
    for program in programs:
        name = program.name
        lowering = target.lowering(_lowering_of(parts, chosen, name))
        payload = file.read(f"code/{name}")
        made = None
        if f"plans/{name}" in file.names and not passes.are_watched():
            made = lowering.load_planned(program, payload, file.text(f"plans/{name}"))
        if made is not None:
            planned.add(name)
        else:
            program = passes.run_only(program, lowering.passes)
            made = lowering.load(program, payload)
        lowered.append(program)
        compiled[name] = made
    return Executable(
        key=key_of(parts),
        key_parts=parts,
        programs=tuple(lowered),
        compiled=compiled,
        target=target,
        chosen={name: each for name, each in chosen.items() if name in compiled},
        planned=frozenset(planned),
        common=tuple(programs),
        verdict=verdicts.from_data(content.get("verdict")),
    )


def _lowering_of(parts: Mapping[str, Any], chosen: Mapping[str, ChosenLowering], name: str) -> str:
    """Return the lowering that compiled a program's code, according to the executable file."""
    try:
        names = lowerings_of(parts, name)
        # The build record reads these, and no other place finds them damaged.
        reasons_of(parts, name)
        dict(parts.get("declined", {}).get(name, {}))
    except KeyError:
        raise CorruptExecutable(f"how program {name!r} is lowered is not said") from None
    if len(names) == 1:
        return names[0]
    if name in chosen and chosen[name].name in names:
        return chosen[name].name
    raise CorruptExecutable(f"which lowering program {name!r} has is not said")
