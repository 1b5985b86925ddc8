"""Files that appear complete or not at all, also when the power goes."""

import contextlib
import errno
import os
import re
import secrets
import socket
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

#: Suffix of a file that is being written, or that a killed process left.
PARTIAL = ".part"


@contextlib.contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """Yield a file to write to; when the block ends well it becomes ``path``, at once.

    Args:
        path: what to make or to replace; its folder is made if it is not there. What killed
            processes of this machine left half written of it is deleted.

    Raises:
        OSError: the folder cannot be written, or the disk is full; an older ``path`` stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    # The last part is unique per thread.
    partial = path.with_name(
        f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}"
    )
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
    """Write UTF-8 text, at once or not at all; lone surrogates become escapes.

    Raises:
        OSError: as for ``replacing``.
    """
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def is_full(error: OSError) -> bool:
    """Return whether a file could not be written because there is no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def sweep(folder: Path, name: str | None = None) -> None:
    """Delete what dead processes of this machine left half written; others may still be writing.

    Args:
        folder: where to look.
        name: only what was to become this file; None means whatever it was to be.

    Raises:
        OSError: the folder is not there, or may not be changed.
    """
    file_pattern = ".+" if name is None else re.escape(name)
    pattern = re.compile(rf"\.{file_pattern}\.{re.escape(_host())}-(\d+)(-\w+)?\{PARTIAL}")
    for entry in os.scandir(folder):
        match = pattern.fullmatch(entry.name)
        if match is not None and not _alive(int(match[1])):
            Path(entry.path).unlink(missing_ok=True)


def _host() -> str:
    return re.sub(r"\W", "_", socket.gethostname())


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # of another user, so it exists
    return True


def _settle(folder: Path) -> None:
    """Flush the folder: until then the new name may be lost with the power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
