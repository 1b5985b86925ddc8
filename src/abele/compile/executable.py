"""An executable: the compiled programs of one model, and the single file that keeps them.

The file is a container: its manifest says what it is and where it may run,
``programs/NAME.py.txt`` is the program for people, ``programs/NAME.bin`` the compiled code, and
``programs/NAME.plan.json`` how that is called, where the lowering says so.
It holds native code, so trust it like a program, not like data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from abele import passes
from abele.compile import verdict as verdicts
from abele.compile.later import Later
from abele.compile.verdict import Proving, Verdict
from abele.containers import is_dict
from abele.errors import AbeleError, CorruptExecutable, ForeignExecutable, SerializationError
from abele.program import Program
from abele.step.config import StepConfig
from abele.storage import container
from abele.storage.container import Container
from abele.targets import Compiled, Lowering, Target, candidates

# 1 did not say how its programs were lowered, and was no container. Code of 2 that one thread had
# compiled ran wrongly in several. 3 was found by programs that had been lowered. 4 had never been
# compared with interpreted programs where its first call waited, and its key lacked strides.
FORMAT = 5
KIND = "abele executable"
SUFFIX = ".abele"
PARTIAL = ".partial"  # a file that is being written, or that a killed process left
#: Among the parts of a key, what follows from the others and is no part of it: an executable that
#: is there says it, so that nobody has to find it out again.
FOLLOWS = ("lowerings", "reasons", "declined")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenLowering:
    """How a program is lowered.

    Attributes:
        name: of the lowering.
        reason: why it was chosen, in words.
    """

    name: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executable:
    """Programs that are ready to run.

    Attributes:
        key: hash of everything that decides what they compute and where they run.
        key_parts: what the key was made from.
        programs: the programs after all passes, or as they were before those of lowerings where
            nobody needed more: see ``lowered``.
        compiled: one call per program name.
        target: what they were compiled for.
        chosen: for each program that had several lowerings, the one that measured fastest.
        later: compiled programs that take over from these when they are there.
        planned: names of programs that were loaded with their plans, which have not been lowered.
        common: the programs before the passes of lowerings, for the interpreter and other
            lowerings.
        verdict: agreement of the compiled programs with interpreted ones, if it is known.
        proving: who has to know of a verdict; None where none is needed.
    """

    key: str
    key_parts: Mapping[str, Any]
    programs: tuple[Program, ...]
    compiled: Mapping[str, Compiled]
    target: Target
    chosen: Mapping[str, ChosenLowering] = dataclasses.field(
        default_factory=dict[str, ChosenLowering]
    )
    later: Later | None = None
    planned: frozenset[str] = frozenset()
    common: tuple[Program, ...] = ()
    verdict: Verdict | None = None
    proving: Proving | None = None
    _lowered: dict[str, Program] = dataclasses.field(
        default_factory=dict[str, Program], init=False, repr=False, compare=False
    )

    def lowered(self, name: str) -> Program:
        """The program of that name after all passes."""
        program = next(each for each in self.programs if each.name == name)
        if name not in self.planned:
            return program
        if name not in self._lowered:
            self._lowered[name] = passes.run_only(program, self.lowering(name).passes)
        return self._lowered[name]

    def is_proven(self) -> bool:
        """Return whether results may be used: they were compared here, or need not be."""
        if all(self.lowering(program.name).trusted for program in self.programs):
            return True
        return self.verdict is not None and self.verdict.machine == verdicts.machine_of(self)

    def has_kernels_of_here(self) -> bool:
        """Return whether library kernels in the code are the objects in this machine's cache."""
        remedied = self.verdict is not None and self.verdict.remedy
        return not remedied and self.key_parts.get("toolchain") == self.target.toolchain()

    def lowering(self, name: str) -> Lowering:
        """The lowering that made the code of the program of that name."""
        chosen = self.chosen.get(name)
        by = lowerings_of(self.key_parts, name)[0] if chosen is None else chosen.name
        return self.target.lowering(by)

    def save(self, path: Path) -> None:
        """Writes the file at once or not at all.

        Raises:
            OSError: the folder is not writable, or the disk is full; nothing is left behind.
        """
        # Not ``atomic``: hosts share a cache, which sweeps what any of them left by its age.
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
        try:
            with open(temporary, "xb") as file:
                self._write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _write(self, file: BinaryIO) -> None:
        members: dict[str, bytes] = {}
        for program in self.programs:
            name, compiled = program.name, self.compiled[program.name]
            members[f"programs/{name}.py.txt"] = (
                self.lowered(name).text().encode(errors="backslashreplace")
            )
            members[f"programs/{name}.bin"] = compiled.payload
            if compiled.plan is not None:
                members[f"programs/{name}.plan.json"] = compiled.plan.encode()
        content = {
            "key": self.key,
            "key_parts": self.key_parts,
            "chosen": chosen_data(self.chosen),
            "verdict": verdicts.to_data(self.verdict),
        }
        container.write_to(file, KIND, content, members)


def key_parts(
    programs: Sequence[Program],
    config: StepConfig,
    target: Target,
    lowerings: Mapping[str, str | Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return everything that code is made from, as JSON values.

    An executable is found by this key before any code is written, so the key has all that code is
    written from: the programs, by fingerprints of everything in them; the sources of abele that
    write; the machine as the target describes it, with torch and the kernel library; the compiler.
    A variable of the environment counts by what it changes: ``CXX`` by the compiler,
    ``ATEN_CPU_CAPABILITY`` by the target's capability, ``ABELE_LOWERING`` as asked, and options by
    the programs and the configuration. The number of threads changes no code.

    How programs are lowered follows from that. Which of several lowerings is the fastest does not:
    it is found when they are compiled, and is in the executable.

    Args:
        programs: after the common passes and before those of lowerings.
        config: the configuration they were captured with.
        target: what they run on.
        lowerings: the name of each one's lowering, or several, by its own name; if that is known.
    """
    parts: dict[str, Any] = {
        "format": FORMAT,
        "programs": {program.name: program.fingerprint() for program in programs},
        "config": config.compile_fields(),
        "target": target.describe(),
        "toolchain": target.toolchain(),
        "choice": candidates.decided_by(target, measured=config.processes == 1),
    }
    if lowerings is not None:
        parts["lowerings"] = dict(lowerings)
    return json.loads(json.dumps(parts, sort_keys=True))


def key_of(parts: Mapping[str, Any]) -> str:
    """The name of the executable with these parts."""
    return hashlib.sha256(json.dumps(_deciding(parts), sort_keys=True).encode()).hexdigest()


def _deciding(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in parts.items() if name not in FOLLOWS}


def following(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a key that tell how code was made: by what, how lowered, and why."""
    return {name: parts[name] for name in (*FOLLOWS, "toolchain") if name in parts}


def lowerings_of(parts: Mapping[str, Any], name: str) -> list[str]:
    """The lowerings that the program of that name may have; see ``key_parts``."""
    names = parts["lowerings"][name]
    return [names] if isinstance(names, str) else list(names)


def reasons_of(parts: Mapping[str, Any], name: str) -> ChosenLowering:
    """The first lowering that the program of that name may have, and why."""
    reasons = parts.get("reasons", {})
    return ChosenLowering(name=lowerings_of(parts, name)[0], reason=str(reasons.get(name, "")))


def chosen_data(chosen: Mapping[str, ChosenLowering]) -> dict[str, dict[str, str]]:
    """Chosen lowerings as JSON values."""
    return {name: dataclasses.asdict(each) for name, each in chosen.items()}


def chosen_from(data: Mapping[str, Mapping[str, str]]) -> dict[str, ChosenLowering]:
    """The chosen lowerings that ``chosen_data`` wrote."""
    return {
        name: ChosenLowering(name=str(each["name"]), reason=str(each["reason"]))
        for name, each in data.items()
    }


def differences(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Names and values of the key parts in which two executables differ."""
    lines: list[str] = []
    for name in sorted({*stored, *wanted}):
        old, new = stored.get(name), wanted.get(name)
        if is_dict(old) and is_dict(new):
            lines += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            lines.append(f"{prefix}{name}: {_short(old)} there, {_short(new)} here")
    return lines


def why_parts_differ(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """As ``differences``, without what follows from others: how programs are lowered, and why."""
    deciding = differences(_deciding(stored), _deciding(wanted))
    return deciding or differences(stored, wanted)


def why_other(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Why an executable with the parts ``stored`` is not the wanted one; empty if it is."""
    if stored.get("format") != wanted["format"]:  # what else differs follows from that
        return (
            f"executables of layout {stored.get('format')} are not read any more, "
            f"only those of layout {wanted['format']}"
        )
    stored, wanted = _deciding(stored), _deciding(wanted)
    # Code of another compiler runs here as well: it is compared before its results are used.
    stored["toolchain"] = wanted.get("toolchain", "")
    if stored["target"]["target"] != wanted["target"]["target"]:  # each has a choice of its own
        stored["choice"] = wanted["choice"]
    return "; ".join(differences(stored, wanted))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


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
    """Restores the executable of ``programs`` from a file.

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
        """Those of a file.

        Args:
            file: has them.
            code: the name of the code in it.
            plan: the name of the plan, which may be missing.

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
    """The executable with these key parts, each program loaded by the lowering that made its code.

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
    """The lowerings of a program, out of a file."""
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
