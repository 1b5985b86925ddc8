"""What a process that compiles is given, and what it leaves: two files in a folder of their own.

``job`` is a container with programs as data; ``result.json`` says where the executable is, or why
there is none. Both appear complete or not at all, and neither is unpickled.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from abele.compile import executable
from abele.compile.serialization import from_text, to_text
from abele.errors import ForeignExecutable, SerializationError
from abele.program import Program
from abele.storage import atomic, container
from abele.storage.container import Container
from abele.targets import Target, get_target

KIND = "abele compile job"
_JOB, _RESULT = "job", "result.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Programs to be compiled.

    Attributes:
        programs: before the passes of lowerings.
        parts: of the executable's key.
        target: what they are compiled for.
        cache: folder where the executable goes; None for the job's own.
        threads: of torch; code is written for about as many.
    """

    programs: tuple[Program, ...]
    parts: Mapping[str, Any]
    target: Target
    cache: str | None
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a job.

    Attributes:
        folder: of the executable; None if there is none.
        seconds: wall time of compiling; zero if another process had done so.
        problem: why there is no executable.
        log: output of the native compiler, if it failed.
        warnings: what the user should see beside.
    """

    folder: str | None = None
    seconds: float = 0.0
    problem: str | None = None
    log: str = ""
    warnings: tuple[str, ...] = ()


def write(folder: Path, job: Job) -> None:
    """Writes a job.

    Raises:
        SerializationError: a program that cannot be stored; names the operation.
        OSError: the disk is full.
    """
    members: dict[str, Any] = {}
    for program in job.programs:
        text, constants = to_text(program)
        members[f"programs/{program.name}.json"] = text.encode()
        for name, value in constants.items():
            members[f"constants/{program.name}/{name}"] = value
    content = {
        "names": [program.name for program in job.programs],
        "parts": dict(job.parts),
        "target": job.target.name,
        "cache": job.cache,
        "threads": job.threads,
    }
    container.write(folder / _JOB, KIND, content, members)


def read(folder: Path) -> Job:
    """Reads a job.

    Raises:
        CorruptExecutable: the file is damaged.
        ForeignExecutable: this process compiles for another machine, or was told other things.
        SerializationError: a program that cannot be read, or has become another one.
        OSError: there is none.
    """
    with Container(folder / _JOB, KIND) as file:
        content = file.content
        target = get_target(content["target"])  # registers the operators of its passes
        programs = tuple(
            from_text(file.text(f"programs/{name}.json"), file.tensors(f"constants/{name}/"))
            for name in content["names"]
        )
    parts = content["parts"]
    for program in programs:
        if program.fingerprint() != parts["programs"][program.name]:
            raise SerializationError(f"Program {program.name!r} was read as another one.")
    here = json.loads(json.dumps(target.describe(), sort_keys=True))
    if here != parts["target"]:
        different = "; ".join(executable.differences(parts["target"], here))
        raise ForeignExecutable(f"The process that compiles sees another machine: {different}.")
    cache, threads = content["cache"], content["threads"]
    return Job(programs=programs, parts=parts, target=target, cache=cache, threads=threads)


def write_result(folder: Path, result: Result) -> None:
    """Writes what came of a job.

    Raises:
        OSError: the disk is full.
    """
    atomic.write_text(folder / _RESULT, json.dumps(dataclasses.asdict(result)))


def read_result(folder: Path) -> Result | None:
    """What came of a job; None if the process ended before it said so."""
    try:
        data: dict[str, Any] = json.loads((folder / _RESULT).read_text())
    except OSError:
        return None
    data["warnings"] = tuple(data["warnings"])
    return Result(**data)
