"""Atomic writes of files, also on power failure."""

import contextlib
import errno
import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from abele import systems
from abele.storage import temporary

#: Suffix of a file that is being written, or that a killed process left.
PARTIAL = ".part"


@contextlib.contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """Yield a temporary file that replaces ``path`` atomically when the block ends well.

    Args:
        path: the file to create or replace; its folder is created if missing, and incomplete
            files of killed processes in it are deleted.

    Raises:
        OSError: the folder cannot be written, or the disk is full; an older ``path`` stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.sweep(path.parent)
    # The token is unique per thread.
    partial = path.with_name(f"{temporary.prefix()}{secrets.token_hex(4)}-{path.name}{PARTIAL}")
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _settle(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically; lone surrogates become escapes.

    Raises:
        OSError: as for ``replacing``.
    """
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def is_full(error: OSError) -> bool:
    """Return whether a write failed because the disk is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _settle(folder: Path) -> None:
    """Flush a folder to disk, as a power failure might lose a file's new name."""
    if not systems.POSIX:  # folders are no files there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
