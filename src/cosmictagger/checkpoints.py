"""Checkpoints: everything a run needs to go on, in files that are whole or absent.

    FOLDER/model-500.ckpt      weights, optimizer, schedule, loader and random state after 500 steps
    FOLDER/checkpoint          index: `latest: NAME`, then `STEP: NAME`, newest first

Names and the keys `global_step`, `state_dict`, `optimizer`, `scheduler` are CosmicTagger's, whose
own files can be read too. Files are read without unpickling code.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from abele.errors import SerializationError
from abele.storage import atomic, digests, state_file
from cosmictagger.errors import CheckpointError

INDEX = "checkpoint"
_NAME = re.compile(r"model-(\d+)\.ckpt")
_LATEST = "latest"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they are; made at the first save.
        keep: how many stay; older ones are deleted after a newer one is complete.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 5):
        self.folder, self.keep = Path(folder), keep

    def entries(self) -> list[tuple[int, Path]]:
        """Steps and files, newest first; from the index, or from file names where it is lost."""
        try:
            lines = (self.folder / INDEX).read_text().splitlines()
        except FileNotFoundError:
            lines = []
        pairs = [line.split(": ", 1) for line in lines if ": " in line]
        listed = [(int(k), self.folder / v) for k, v in pairs if k.isdecimal()]
        existing = [(step, path) for step, path in listed if path.is_file()]
        return existing or self._named()

    def _named(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        matches = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return sorted(((int(m[1]), path) for m, path in matches if m), reverse=True)

    def save(self, step: int, content: Mapping[str, Any]) -> Path:
        """Write a checkpoint and drop the oldest ones.

        Args:
            step: steps made so far.
            content: tensors, numbers and strings in dictionaries and lists.

        Raises:
            CheckpointError: it cannot be written, for example because the disk is full, or holds
                something that no file can. All earlier checkpoints are still there.
        """
        path = self.folder / f"model-{step}.ckpt"
        plain = _plain(content)
        older = [entry for entry in self.entries() if entry[1] != path]
        entries = [(step, path), *older][: self.keep]
        try:
            state_file.write(path, plain)
            lines = [f"{_LATEST}: {path.name}", *(f"{s}: {p.name}" for s, p in entries)]
            atomic.write_text(self.folder / INDEX, "\n".join(lines) + "\n")
        except OSError as error:
            last = f"The latest one is {older[0][1]}." if older else "There is none before it."
            raise CheckpointError(
                f"The checkpoint {path} cannot be written: {error}. {last} Make room and start the "
                "same command again."
            ) from error
        for _, outdated in older[self.keep - 1 :]:
            outdated.unlink(missing_ok=True)
        return path


def locate(location: str | os.PathLike[str]) -> Path:
    """Return the checkpoint that a folder or a file name stands for.

    Args:
        location: a ``.ckpt`` file, a folder of checkpoints, or a run's output folder.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(location)
    if path.is_file() and path.name != INDEX:
        return path
    folder = path.parent if path.is_file() else path
    for candidate in (folder, folder / "checkpoints"):
        entries = Checkpoints(candidate).entries()
        if entries:
            return entries[0][1]
    reason = "has no checkpoint in it" if folder.is_dir() else "does not exist"
    raise CheckpointError(
        f"mode.weights_location={location} was asked for, but {path} {reason}. Name a folder with "
        "model-STEP.ckpt files, or one such file."
    )


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint completely, on the host.

    Raises:
        CheckpointError: it is damaged or no checkpoint; the message names an older one that is
            whole, and how to choose it.
    """
    try:
        content = _read(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint {path} cannot be read: {error}. {_advice(path)}"
        ) from error
    return content


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return state_file.plain(dict(content), "checkpoint")
    except SerializationError as error:
        raise CheckpointError(f"No checkpoint can be made: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    # The original saved its learning rate as a numpy number.
    numbers = [
        (np._core.multiarray.scalar, "numpy.core.multiarray.scalar"),  # type: ignore[attr-defined]
        (np._core.multiarray.scalar, "numpy._core.multiarray.scalar"),  # type: ignore[attr-defined]
        np.dtype,
        np.dtypes.Float64DType,
        np.dtypes.Float32DType,
    ]
    with torch.serialization.safe_globals(numbers):
        content = state_file.read(path)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), Mapping):
        raise ValueError("it has no state_dict, so it is no checkpoint of CosmicTagger")
    return content


def _advice(path: Path) -> str:
    older = [entry for _, entry in Checkpoints(path.parent).entries() if entry != path]
    for candidate in older:
        with contextlib.suppress(OSError, ValueError):
            _read(candidate)
            return f"{candidate} is whole; choose it with mode.weights_location={candidate}"
    return "There is no other one that is whole; start a new run with another run.id."


def network_weights(content: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint by name, without what a wrapper put before the names."""
    weights = content["state_dict"]
    if weights and all(name.startswith("module.") for name in weights):
        return {name.removeprefix("module."): value for name, value in weights.items()}
    return dict(weights)


def check_fits(
    weights: Mapping[str, torch.Tensor], network: torch.nn.Module, path: Path | str
) -> None:
    """Refuse weights of another network.

    Raises:
        CheckpointError: names or shapes differ; the message shows the first of each kind.
    """
    tensors = network.state_dict()
    missing = [name for name in tensors if name not in weights]
    unknown = [name for name in weights if name not in tensors]
    other = [
        f"{name} {list(weights[name].shape)} instead of {list(value.shape)}"
        for name, value in tensors.items()
        if name in weights and weights[name].shape != value.shape
    ]
    faults = [
        f"{len(names)} {kind} ({_first(names)})"
        for kind, names in (("missing", missing), ("unknown", unknown), ("of other shape", other))
        if names
    ]
    if faults:
        raise CheckpointError(
            f"The checkpoint {path} is of another network: of {len(tensors)} tensors, "
            f"{'; '.join(faults)}. Use the network= and network.* settings it was trained with."
        )


def _first(names: Sequence[str], count: int = 2) -> str:
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def weights_hash(weights: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bits of all weights and buffers."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(digests.raw_bytes(value))
    return digest.hexdigest()
