"""A folder of executables: one file per key.

Reading needs one look-up; only a miss reads the other files, to say how they differ. A damaged file
costs a rebuild and one warning. Writing is atomic, so any number of processes may share a folder;
of those that miss the same executable one compiles it and the others wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from abele import systems
from abele.compilation import executable_file, keys
from abele.compilation.executable import Executable
from abele.compilation.executable_file import SUFFIX
from abele.errors import CorruptExecutable, ForeignExecutable
from abele.program import Program
from abele.storage import files, temporary
from abele.storage.atomic import PARTIAL
from abele.targets import Target
from abele.warn import warn_user

_NAMED = 4  # parts of a key that a miss names
_ABANDONED_S = 24 * 3600.0  # no compile takes this long to write its file


class CacheWarning(UserWarning):
    """The cache could not be read or written; the run goes on without it."""


class ExecutableCache:
    """A folder of cached executables, created at the first write."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder).expanduser()
        self._unusable: set[Path] = set()  # damaged, and nobody may move them away
        self._refused: dict[Path, str] = {}  # why files could not be used

    def path(self, key: str) -> Path:
        """Return the path of the cached executable with a given key."""
        return self.folder / f"{key}{SUFFIX}"

    def has(self, key: str) -> bool:
        """Return whether the cache has a file for an executable's key, intact or not."""
        return os.path.exists(self.path(key))

    def load(
        self, programs: Sequence[Program], parts: Mapping[str, Any], target: Target
    ) -> Executable | None:
        """Return the cached executable with these key parts, or None."""
        path = self._found(parts)
        if path in self._unusable:
            return None
        try:
            stored = executable_file.load(path, programs, parts, target)
            with contextlib.suppress(OSError):  # a folder of somebody else's
                os.utime(path)  # see ``files.prune``
            return stored
        except (FileNotFoundError, NotADirectoryError):
            return None  # not stored yet; a folder that cannot be one is reported by ``store``
        except (CorruptExecutable, ForeignExecutable, OSError) as error:
            self._set_aside(path, error)
            return None

    def _found(self, parts: Mapping[str, Any]) -> Path:
        """Return the cache file with these key parts; without a compiler, of any compiler."""
        key = keys.key_of(parts)
        if parts.get("toolchain") or self.has(key):
            return self.path(key)
        for each in self._listed(SUFFIX):
            with contextlib.suppress(CorruptExecutable, OSError):
                if not keys.why_other(executable_file.key_parts_in(each), parts):
                    return each
        return self.path(key)

    def store(self, made: Executable) -> bool:
        """Store an executable; return whether that worked."""
        try:
            executable_file.save(made, self.path(made.key))
            self._unusable.discard(self.path(made.key))
            # Hosts share a folder, and a killed process of another one sweeps nothing.
            _delete_old(self._listed(PARTIAL), _ABANDONED_S)
        except OSError as error:
            warn_user(
                f"The executable could not be cached in {self.folder} ({error.strerror}). "
                "The run goes on; the next one compiles again. Check the folder's permissions "
                "and free space.",
                CacheWarning,
            )
            return False
        return True

    def lock(self, key: str) -> filelock.BaseFileLock | None:
        """Return the unacquired file lock of the process that compiles an executable.

        The system releases the lock when the process ends, however it ends. None if no lock
        folder belongs to this user alone: every process then compiles its own executable.
        """
        name = hashlib.sha256(
            f"{self.folder.absolute()}/{key}".encode(errors="surrogateescape")
        ).hexdigest()
        # Not in the folder: locks of network drives are another matter, and their files stay.
        try:
            locks = Path(systems.temporary_folder()) / f"abele-locks-{systems.user()}"
            files.make_private(locks)  # whoever else made it could hold a lock for ever
            # Two owners of a lock that was deleted only compile twice.
            _delete_old(locks.iterdir(), temporary.ABANDONED_S)
        except OSError:
            return None
        # One thread of a program may acquire it and another release it.
        return filelock.FileLock(locks / name, thread_local=False)

    @contextlib.contextmanager
    def only_one(self, key: str, waiting: Callable[[], None]) -> Generator[bool]:
        """Let one process of this host and user at a time compile an executable.

        Yields:
            Whether the executable may be there by now: this process had to wait, or there is a
            file, which another process stored after this one had looked.
        """
        lock, waited = self.lock(key), False
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # nowhere to lock
                if lock is not None:
                    waited = _acquired_late(lock, waiting)
                    held.callback(lock.release)
            yield waited or self.has(key)

    def why_missing(self, parts: Mapping[str, Any]) -> str:
        """Explain a cache miss: an unusable file, or how the nearest stored key differs."""
        refused = self._refused.get(self.path(keys.key_of(parts)))
        if refused is not None:
            return f"the stored executable could not be used: {refused}"
        nearest: list[str] | None = None
        for path in self._listed(SUFFIX):
            with contextlib.suppress(Exception):  # its key parts may be anything
                different = keys.why_parts_differ(executable_file.key_parts_in(path), parts)
                if nearest is None or len(different) < len(nearest):
                    nearest = different
        if nearest is None:
            return f"{self.folder} holds no executable yet"
        listed = "; ".join(nearest[:_NAMED])
        more = f"; and in {len(nearest) - _NAMED} more" if len(nearest) > _NAMED else ""
        return f"the nearest of the stored executables differs in {listed}{more}"

    def _listed(self, suffix: str) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.name.endswith(suffix))
        except OSError:
            return []  # not there yet, or no path at all

    def _set_aside(self, path: Path, error: Exception) -> None:
        self._refused[path] = str(error)
        aside = path.with_suffix(".bad")
        try:
            os.replace(path, aside)
            kept = f" It is kept as {aside}."
        except OSError:
            self._unusable.add(path)
            kept = ""
        warn_user(
            f"A cached executable could not be used and is rebuilt: {error}{kept}",
            CacheWarning,
        )


def _acquired_late(lock: filelock.BaseFileLock, waiting: Callable[[], None]) -> bool:
    """Acquire a lock; call ``waiting`` and return True if another process held it."""
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        lock.acquire(poll_interval=0.1)
        return True
    return False


def _delete_old(paths: Iterable[Path], seconds: float) -> None:
    """Delete abandoned temporary files: not written for ``seconds``, as the writer was killed."""
    for path in paths:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > seconds:
                path.unlink()
