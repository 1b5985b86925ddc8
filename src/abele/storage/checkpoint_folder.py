"""Checkpoints of a run in a folder: atomically written files, of which the newest stay.

Only wrong bytes are damage. A file that cannot be read, or that is of another kind, is an error and
stays where it is: it may be the only copy of a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from abele.errors import SerializationError
from abele.storage import files, state_file
from abele.storage.state_file import DamagedFileError

_SET_ASIDE = ".damaged"


class Checkpoint(NamedTuple):
    """A loaded checkpoint: its file, the bytes, and the content on the host."""

    path: Path
    data: bytes
    content: Any


class CheckpointFolder:
    """The checkpoints of one run, ``PREFIX-STEP.ckpt``.

    Args:
        folder: created at the first save.
        prefix: of the files' names.
        keep: number of retained files; older files are deleted after a newer one is complete.
        require: raises ValueError for the content of a file of another kind.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        prefix: str,
        keep: int,
        require: Callable[[Any], None],
    ):
        self.folder, self.keep = Path(folder), keep
        self._prefix, self._require = prefix, require

    def entries(self) -> list[tuple[int, Path]]:
        """Return steps and files of all checkpoints, newest first.

        Raises:
            SerializationError: the folder cannot be read.
        """
        pattern = re.compile(rf"{re.escape(self._prefix)}-(\d+)\.ckpt")
        matches = [(pattern.fullmatch(name), name) for name in self._names()]
        return sorted(((int(m[1]), self.folder / name) for m, name in matches if m), reverse=True)

    def latest(self) -> Path | None:
        """Return the newest checkpoint file, intact or not; None before the first.

        Raises:
            SerializationError: the folder cannot be read, or all that it has is set aside.
        """
        entries = self.entries()
        if entries:
            return entries[0][1]
        aside = sorted(name for name in self._names() if name.endswith(f".ckpt{_SET_ASIDE}"))
        if aside:
            raise SerializationError(
                f"All checkpoints in {self.folder} were damaged and are set aside: "
                f"{', '.join(aside)}. Copy a whole one there. To start anew, delete them or use "
                "another folder."
            )
        return None

    def read(self, path: Path) -> Checkpoint:
        """Read and verify a checkpoint file.

        Raises:
            DamagedFileError: its bytes are not those that were written.
            SerializationError: it cannot be read, or is of another kind.
        """
        try:
            with files.open_regular(path) as file:
                data = file.read()
            content = state_file.from_bytes(data)
            self._require(content)
        except DamagedFileError:
            raise
        except (OSError, MemoryError) as error:
            raise SerializationError(
                f"The checkpoint {path} cannot be read: {error}. It may be whole, so it stays as "
                "it is. Remove the cause and start the same command again."
            ) from error
        except ValueError as error:
            raise SerializationError(
                f"The checkpoint {path} cannot be read: {error}. Start with the version that wrote "
                "it, or move the file away."
            ) from error
        return Checkpoint(path, data, content)

    def newest_whole(
        self, paths: Iterable[Path]
    ) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
        """Return the first intact checkpoint, and the damaged files before it with reasons.

        Raises:
            SerializationError: a file cannot be read, or is of another kind.
        """
        damaged: list[tuple[Path, str]] = []
        for path in paths:
            try:
                return self.read(path), damaged
            except DamagedFileError as error:
                damaged.append((path, str(error)))
        return None, damaged

    def set_aside(self, paths: Iterable[Path]) -> None:
        """Rename damaged checkpoint files, so that the run goes on without them.

        Raises:
            SerializationError: one cannot be renamed.
        """
        for path in paths:
            try:
                os.replace(path, f"{path}{_SET_ASIDE}")
            except OSError as error:
                raise SerializationError(
                    f"The checkpoint {path} is damaged and cannot be renamed: {error}. Move it "
                    "away."
                ) from error

    def write(self, step: int, content: Mapping[str, Any]) -> Path:
        """Write a checkpoint and then delete the oldest checkpoints.

        Args:
            step: number of steps so far.
            content: what ``state_file.plain`` returned.

        Raises:
            SerializationError: it cannot be written; all earlier ones are still there.
        """
        path = self.folder / f"{self._prefix}-{step}.ckpt"
        older = [entry for entry in self.entries() if entry[1] != path]
        try:
            state_file.write(path, content)
            self._note([(step, path), *older][: self.keep])
            for _, outdated in older[self.keep - 1 :]:
                outdated.unlink(missing_ok=True)
        except OSError as error:
            last = f"The latest one is {older[0][1]}." if older else "There is none before it."
            raise SerializationError(
                f"The checkpoint {path} cannot be written: {error}. {last} Make room and start the "
                "same command again."
            ) from error
        return path

    def _note(self, entries: Sequence[tuple[int, Path]]) -> None:
        """Record the remaining checkpoint files, in folders that have an index."""

    def _names(self) -> list[str]:
        # Not Path.is_dir, which newer versions of Python answer with False if it cannot be known.
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SerializationError(
                f"The checkpoints in {self.folder} cannot be read: {error}. Name a folder of this "
                "user's own."
            ) from error
