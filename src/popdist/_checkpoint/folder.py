"""A folder of checkpoints, `step-500.ckpt` and so on; only instance 0 comes here."""

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from abele.storage import atomic, files, state_file
from abele.warn import warn_user
from popdist._error import CheckpointError, CheckpointWarning

KIND = "popdist.checkpoint"
FORMAT = 1
_NAME = re.compile(r"step-(\d+)\.ckpt")


def entries(folder: Path) -> list[tuple[int, Path]]:
    """Steps and files, newest first."""
    if not folder.is_dir():
        return []
    named = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)


def prepare(folder: Path) -> None:
    """Makes the folder, sees that it can be written, and clears what a killed run left half.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        atomic.sweep(folder)
    except OSError as error:
        raise CheckpointError(
            f"Checkpoints are to be kept in {folder}, which cannot be written: {error}. Choose a "
            "folder that can."
        ) from error


def newest(folder: Path) -> tuple[Path, bytes] | None:
    """The newest checkpoint that is whole, as a file and its bytes; None if there are none.

    A damaged one is renamed, with a warning, and the one before it taken.

    Raises:
        CheckpointError: there are some, and all are damaged.
    """
    checkpoints = entries(folder)
    bad: list[str] = []
    for _, path in checkpoints:
        data, problem = _read(path)
        if problem is None:
            if bad:
                warn_user(
                    f"Training goes on from {path}, because newer ones are damaged: "
                    f"{'; '.join(bad)}.",
                    CheckpointWarning,
                )
            return path, data
        aside = path.with_name(f"{path.name}.damaged")
        with contextlib.suppress(OSError):
            os.replace(path, aside)
        bad.append(f"{path} ({problem}; it is kept as {aside.name})")
    if bad:
        raise CheckpointError(
            f"All checkpoints in {folder} are damaged: {'; '.join(bad)}. Copy a whole one there, "
            "or start anew with another folder."
        )
    return None


def _read(path: Path) -> tuple[bytes, str | None]:
    try:
        with files.open_regular(path) as file:
            data = file.read()
        content = state_file.from_bytes(data)
    except (OSError, ValueError) as error:
        return b"", str(error)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        return b"", "it is no checkpoint of popdist"
    if content.get("format") != FORMAT:
        return b"", f"its format is {content.get('format')}, not {FORMAT}"
    return data, None


def write(folder: Path, step: int, content: Mapping[str, Any], keep: int) -> Path:
    """Writes a checkpoint and then deletes the oldest ones.

    Raises:
        CheckpointError: it cannot be written; all earlier ones are still there.
    """
    path = folder / f"step-{step}.ckpt"
    older = [entry for _, entry in entries(folder) if entry != path]
    try:
        state_file.write(path, {"kind": KIND, "format": FORMAT, **content})
        for outdated in older[keep - 1 :]:
            outdated.unlink(missing_ok=True)
    except OSError as error:
        last = f"The latest one is {older[0]}." if older else "There is none before it."
        raise CheckpointError(
            f"The checkpoint {path} cannot be written: {error}. {last} Make room and start the "
            "same command again."
        ) from error
    return path
