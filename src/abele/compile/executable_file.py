"""The single file that keeps an executable.

The file is a container: its manifest says what it is and where it may run,
``programs/NAME.py.txt`` is the program for people, ``programs/NAME.bin`` the compiled code, and
``programs/NAME.plan.json`` how that is called, where the lowering says so.
It holds native code, so trust it like a program, not like data.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from abele import passes
from abele.compile import verdict as verdicts
from abele.compile.executable import ChosenLowering, Executable, lowerings_of
from abele.compile.keys import following, key_of, why_other
from abele.compile.verdict import Verdict
from abele.containers import is_dict
from abele.errors import AbeleError, CorruptExecutable, ForeignExecutable, SerializationError
from abele.program import Program
from abele.storage import container
from abele.storage.container import Container
from abele.targets import Compiled, Target

KIND = "abele executable"
SUFFIX = ".abele"


def save(made: Executable, path: Path) -> None:
    """Write an executable to a file, completely or not at all.

    Raises:
        OSError: the folder is not writable, or the disk is full; nothing is left behind.
    """
    content = {
        "key": made.key,
        "key_parts": made.key_parts,
        "chosen": chosen_data(made.chosen),
        "verdict": verdicts.to_data(made.verdict),
    }
    container.write(path, KIND, content, _members(made))


def _members(made: Executable) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for program in made.programs:
        name, compiled = program.name, made.compiled[program.name]
        text = made.lowered(name).text().encode(errors="backslashreplace")
        members[f"programs/{name}.py.txt"] = text
        members[f"programs/{name}.bin"] = compiled.payload
        if compiled.plan is not None:
            members[f"programs/{name}.plan.json"] = compiled.plan.encode()
    return members


def chosen_data(chosen: Mapping[str, ChosenLowering]) -> dict[str, dict[str, str]]:
    """Return chosen lowerings as JSON values."""
    return {name: dataclasses.asdict(each) for name, each in chosen.items()}


def chosen_from(data: Mapping[str, Mapping[str, str]]) -> dict[str, ChosenLowering]:
    """Return the chosen lowerings that ``chosen_data`` wrote."""
    return {
        name: ChosenLowering(name=str(each["name"]), reason=str(each["reason"]))
        for name, each in data.items()
    }


def read_manifest(path: Path) -> dict[str, Any]:
    """Return key and key parts of an executable file.

    Raises:
        CorruptExecutable: the file is damaged or is not an executable.
        OSError: there is no such file, or it may not be read.
    """
    with _opened(path) as file:
        return file.content


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Container]:
    """Open an executable file while open, and say of damage what to do about it."""
    try:
        with Container(path, KIND) as file:
            for name, kind in {"key": str, "key_parts": dict}.items():
                if not isinstance(file.content.get(name), kind):
                    value = file.content.get(name)
                    raise CorruptExecutable(f"{name} in the manifest is {value!r}")
            yield file
    except CorruptExecutable as error:
        cause = error.__cause__ or error
        raise CorruptExecutable(
            f"{path} is not a readable executable ({type(cause).__name__}: {cause}). "
            "Delete it; it will be rebuilt."
        ) from error


def load(
    path: Path, programs: Sequence[Program], parts: Mapping[str, Any], target: Target
) -> Executable:
    """Restore the executable of ``programs`` from a file.

    Raises:
        CorruptExecutable: the file is damaged.
        ForeignExecutable: it is sound but made for other programs, torch or hardware.
    """
    with _opened(path) as file, _meaning(path):
        _refuse_foreign(path, file.content["key_parts"], parts)
        parts = {**parts, **_stated(file.content["key_parts"])}
        names = [program.name for program in programs]
        codes = {
            name: Code.of(file, f"programs/{name}.bin", f"programs/{name}.plan.json")
            for name in names
        }
        chosen = chosen_from(file.content.get("chosen", {}))
        verdict = verdicts.from_data(file.content.get("verdict"))
    with _meaning(path):
        return restored(programs, parts, target, codes.__getitem__, chosen, verdict)


def _stated(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says of lowerings, if all of it is of the types that are written."""
    stated = following(parts)
    inner = stated.get("declined", {})
    types = {"toolchain": str}
    wrong = [name for name, each in stated.items() if not isinstance(each, types.get(name, dict))]
    wrong += [name for name, each in (inner.items() if is_dict(inner) else ()) if not is_dict(each)]
    if wrong:
        raise CorruptExecutable(f"{', '.join(wrong)} in the manifest has another type than written")
    return stated


@contextlib.contextmanager
def _meaning(path: Path) -> Generator[None]:
    """While open, whatever goes wrong in making sense of a sound file is a CorruptExecutable."""
    try:
        yield
    except SerializationError as error:
        raise _meaningless(path, error) from error
    except AbeleError:
        raise
    except Exception as error:  # contents that mean nothing can fail in any way
        raise _meaningless(path, error) from error


def _meaningless(path: Path, error: Exception) -> CorruptExecutable:
    return CorruptExecutable(
        f"{path} is sound but its code cannot be loaded ({type(error).__name__}: {error}). "
        "Delete it; it will be rebuilt."
    )


class Code(NamedTuple):
    """The compiled code of a program, and how it is called, if the file says so."""

    payload: bytes
    plan: str | None

    @classmethod
    def of(cls, file: Container, code: str, plan: str) -> Code:
        """Read the code and the plan of a program from a file.

        Raises:
            CorruptExecutable: the code is missing, or one of both was altered.
        """
        return cls(file.read(code), file.text(plan) if plan in file.names else None)


def restored(
    programs: Sequence[Program],
    parts: Mapping[str, Any],
    target: Target,
    code: Callable[[str], Code],
    chosen: Mapping[str, ChosenLowering],
    verdict: Verdict | None = None,
) -> Executable:
    """Load each program's code by its lowering, and return the executable with these key parts.

    Args:
        programs: see ``key_parts``.
        parts: of the executable where it was made; they say how programs are lowered.
        target: what it was made for.
        code: of a program, by its name.
        chosen: which of several lowerings each program has.
        verdict: agreement with interpreted programs, as the file has it.

    Raises:
        ForeignExecutable: the target has no lowering of that name, or the code is of another one.
        CorruptExecutable: it is not said which of several lowerings made the code, or a plan is
            damaged.
        RuntimeError: the code cannot be loaded.
    """
    lowered: list[Program] = []
    compiled: dict[str, Compiled] = {}
    planned: set[str] = set()
    common = tuple(programs)
    for program in programs:
        name = program.name
        names = _said(parts, name)
        if len(names) == 1:
            lowering = target.lowering(names[0])
        elif name in chosen and chosen[name].name in names:
            lowering = target.lowering(chosen[name].name)
        else:
            raise CorruptExecutable(f"which lowering program {name!r} has is not said")
        payload, plan = code(name)
        made = None
        if plan is not None and not passes.are_watched():
            made = lowering.load_planned(program, payload, plan)
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
        common=common,
        verdict=verdict,
    )


def _said(parts: Mapping[str, Any], name: str) -> list[str]:
    """Return the lowerings of a program according to a file."""
    try:
        return lowerings_of(parts, name)
    except KeyError:
        raise CorruptExecutable(f"how program {name!r} is lowered is not said") from None


def _refuse_foreign(path: Path, there: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    reason = why_other(there, parts)
    if reason:
        raise ForeignExecutable(
            f"{path} was made for something else: {reason}. "
            "Compile here, or load it where it was made."
        )
