"""A C++ compiler for tests that compiles the same source once, in whichever process and run.

Most of a compiled test is g++ on emitted code, and most programs of the tests do not change from
run to run. `install` makes a command that looks its output up by a hash of
everything that decides it, and otherwise calls the real compiler. `--cache-clear` empties it.

The hash covers sources and the files that they include from their own folder and from the folders
that a command names. Headers of the system are the compiler's, which the version stands for.
"""

import contextlib
import hashlib
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

KEPT_S = 14 * 24 * 3600
TEXTS = (".c", ".cpp", ".S", ".h")
SOURCES = (*TEXTS, ".o")
INCLUDE = re.compile(rb'^#include ["<]([^">]+)', re.M)


def install(folder: Path, compiler: str, version: str) -> Path:
    """Makes the command in ``folder`` and forgets what nobody has asked for in weeks.

    Args:
        folder: where outputs are kept between runs.
        compiler: path of the real compiler, whose name the command has.
        version: whatever else decides the output, such as the versions of compiler and torch.
    """
    for kept in (*folder.glob("*.z"), *folder.glob("*.gch")):
        with contextlib.suppress(OSError):  # another worker removes the same
            if kept.stat().st_mtime < time.time() - KEPT_S:
                kept.unlink()
    command = folder / Path(compiler).name
    words = (sys.executable, "-I", "-S", __file__, str(folder), compiler, version)
    _write(command, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'.encode(), 0o755)
    return command


def main(folder: Path, compiler: str, version: str, arguments: list[str]) -> int:
    """Compiles as ``compiler`` would, or copies what it made of the same input before."""
    command = [compiler, *arguments]
    if (output := _output(arguments)) is None:
        os.execv(compiler, command)
    if "c++-header" in arguments:
        return _precompile(folder, version, command)
    kept = folder / f"{_key(version, arguments)}.z"
    with contextlib.suppress(OSError, zlib.error):
        _write(Path(output), zlib.decompress(kept.read_bytes()), 0o755)
        os.utime(kept)
        return 0
    status = subprocess.call(command)
    if status == 0:
        _write(kept, zlib.compress(Path(output).read_bytes(), 1), 0o644)
    return status


def _precompile(folder: Path, version: str, command: list[str]) -> int:
    """Links a precompiled header that is there under another name; compiles it otherwise.

    Nothing is copied: these are tens of megabytes.
    """
    output = Path(command[command.index("-o") + 1])
    kept = folder / f"{_key(version, command[1:])}.gch"
    with contextlib.suppress(OSError):
        output.hardlink_to(kept)
        return 0
    status = subprocess.call(command)
    if status == 0:
        with contextlib.suppress(OSError):  # another file system, or another worker was faster
            kept.hardlink_to(output)
    return status


def _output(arguments: list[str]) -> str | None:
    """Where the output goes; nothing if this is no call to look up."""
    if "-o" not in arguments or "-E" in arguments:
        return None
    return arguments[arguments.index("-o") + 1] if _sources(arguments) else None


def _sources(arguments: list[str]) -> list[str]:
    output = arguments.index("-o") + 1
    return [
        word
        for position, word in enumerate(arguments)
        if position != output and word.endswith(SOURCES) and os.path.isfile(word)
    ]


def _key(version: str, arguments: list[str]) -> str:
    sources, output = _sources(arguments), arguments.index("-o") + 1
    digest = hashlib.sha256(version.encode())
    folders = _folders(arguments)
    for position, word in enumerate(arguments):
        if word in sources:
            for content in _contents(Path(word), folders).values():
                digest.update(hashlib.sha256(content).digest())
        elif position != output:
            digest.update(b"\0" + word.encode())
    return digest.hexdigest()


def _folders(arguments: list[str]) -> list[Path]:
    """Folders in which the compiler looks for the files that sources include."""
    pairs = itertools.pairwise(arguments)
    named = [word for before, word in pairs if before in ("-iquote", "-I")]
    joined = [word[2:] for word in arguments if word.startswith("-I") and word != "-I"]
    return [Path(each) for each in named + joined]


def _contents(source: Path, folders: list[Path]) -> dict[Path, bytes]:
    """What a source and the files that it includes contain, by path."""
    read, waiting = dict[Path, bytes](), [source]
    while waiting:
        path = waiting.pop()
        if path in read:
            continue
        read[path] = path.read_bytes()
        names = INCLUDE.findall(read[path]) if path.suffix in TEXTS else []
        for name in map(os.fsdecode, names):
            places = (folder / name for folder in (path.parent, *folders))
            waiting += [each for each in places if each.is_file()][:1]
    return read


def _write(path: Path, content: bytes, mode: int) -> None:
    """Writes at once or not at all, for other processes look for the same."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.chmod(temporary, mode)
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
