"""A folder of checkpoints, `step-500.ckpt` and so on; only instance 0 comes here."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from abele.errors import SerializationError
from abele.storage import atomic
from abele.storage.checkpoint_folder import CheckpointFolder
from abele.warn import warn_user
from popdist._error import CheckpointError, CheckpointWarning

KIND = "popdist.checkpoint"
FORMAT = 1


def prepare(folder: Path) -> None:
    """Make the folder, check that it can be written, and delete what a killed run left half.

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
    """Return the newest checkpoint that is whole and its bytes; None if the run is new.

    Damaged ones that are newer are renamed, with a warning.

    Raises:
        CheckpointError: all are damaged, or one cannot be read. Then no file is renamed.
    """
    checkpoints = _checkpoints(folder)
    with _translated():
        if checkpoints.latest() is None:
            return None
        found, damaged = checkpoints.newest_whole(path for _, path in checkpoints.entries())
        bad = "; ".join(f"{path} ({problem})" for path, problem in damaged)
        if found is None:
            raise CheckpointError(
                f"All checkpoints in {folder} are damaged: {bad}. Copy a whole one there, or start "
                "anew with another folder."
            )
        if damaged:
            checkpoints.set_aside(path for path, _ in damaged)
            warn_user(
                f"Training goes on from {found.path}, because newer ones are damaged: {bad}. They "
                "are kept as *.ckpt.damaged.",
                CheckpointWarning,
            )
    return found.path, found.data


def write(folder: Path, step: int, content: Mapping[str, Any], keep: int) -> Path:
    """Write a checkpoint and then delete the oldest ones.

    Raises:
        CheckpointError: it cannot be written; all earlier ones are still there.
    """
    with _translated():
        return _checkpoints(folder, keep).write(step, {"kind": KIND, "format": FORMAT, **content})


def _checkpoints(folder: Path, keep: int = 1) -> CheckpointFolder:
    return CheckpointFolder(folder, "step", keep, _require)


def _require(content: Any) -> None:
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ValueError("it is no checkpoint of popdist")
    if content.get("format") != FORMAT:
        raise ValueError(f"its format is {content.get('format')}, not {FORMAT}")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise what is wrong with files as everywhere in this package."""
    try:
        yield
    except SerializationError as error:
        raise CheckpointError(str(error)) from error
