"""Checkpoints from which a run resumes, written atomically.

    FOLDER/model-500.ckpt      weights, optimizer, schedule, loader and random state after 500 steps
    FOLDER/checkpoint          index: `latest: NAME`, then `STEP: NAME`, newest first

Names and the keys `global_step`, `state_dict`, `optimizer`, `scheduler` are CosmicTagger's, whose
own files can be read too. Files are read without unpickling code.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from abele.errors import SerializationError, raised_as
from abele.storage import atomic, state_file, values
from abele.storage.checkpoint_folder import Checkpoint, CheckpointFolder
from abele.storage.state_file import DamagedFileError
from cosmictagger.errors import CheckpointError, ConfigError

INDEX = "checkpoint"
_LATEST = "latest"


class Checkpoints(CheckpointFolder):
    """The checkpoints of one run, with an index file as CosmicTagger writes it."""

    def __init__(self, folder: str | os.PathLike[str], keep: int = 5):
        super().__init__(folder, "model", keep, _require)

    def entries(self) -> list[tuple[int, Path]]:
        """Return (step, file) of all checkpoints, newest first, from index or file names."""
        pairs = [line.split(": ", 1) for line in self._index() if ": " in line]
        present = set(self._names())
        listed = [(int(k), self.folder / v) for k, v in pairs if k.isdecimal() and v in present]
        return listed or super().entries()

    def _index(self) -> list[str]:
        try:
            return (self.folder / INDEX).read_text(encoding="utf-8", errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise SerializationError(f"The index of checkpoints is not read: {error}.") from error

    def latest(self) -> Path | None:
        """Return the newest checkpoint file, intact or not; None before the first checkpoint."""
        with raised_as(CheckpointError, SerializationError):
            return super().latest()

    def read(self, path: Path) -> Checkpoint:
        """Read a checkpoint completely, including checkpoints of the original CosmicTagger."""
        # The original saved its learning rate as a numpy number.
        scalar: Any = np._core.multiarray.scalar  # type: ignore[attr-defined]
        numbers = [
            (scalar, "numpy.core.multiarray.scalar"),
            (scalar, "numpy._core.multiarray.scalar"),
            np.dtype,
            np.dtypes.Float64DType,
            np.dtypes.Float32DType,
        ]
        with torch.serialization.safe_globals(numbers):
            return super().read(path)

    def save(self, step: int, content: Mapping[str, Any]) -> Path:
        """Write a checkpoint and delete the oldest checkpoints."""
        try:
            plain = state_file.plain(dict(content), "checkpoint")
        except SerializationError as error:
            raise CheckpointError(f"No checkpoint can be made: {error}") from error
        with raised_as(CheckpointError, SerializationError):
            return self.write(step, plain)

    def _note(self, entries: Sequence[tuple[int, Path]]) -> None:
        lines = [f"{_LATEST}: {entries[0][1].name}", *(f"{s}: {p.name}" for s, p in entries)]
        atomic.write_text(self.folder / INDEX, "\n".join(lines) + "\n")


def locate(location: str | os.PathLike[str]) -> Path:
    """Return the checkpoint file that a folder or file name refers to.

    Args:
        location: a ``.ckpt`` file, a folder of checkpoints, or a run's output folder.
    """
    path = Path(location)
    if path.is_file() and path.name != INDEX:
        return path
    folder = path.parent if path.is_file() else path
    for candidate in (folder, folder / "checkpoints"):
        latest = Checkpoints(candidate).latest()
        if latest is not None:
            return latest
    reason = "has no checkpoint in it" if folder.is_dir() else "does not exist"
    raise ConfigError(
        f"mode.weights_location={location} was asked for, but {path} {reason}. Name a folder with "
        "model-STEP.ckpt files, or one such file."
    )


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint completely, on the host."""
    checkpoints = Checkpoints(path.parent)
    with raised_as(CheckpointError, SerializationError):
        try:
            return checkpoints.read(path).content
        except DamagedFileError as error:
            raise CheckpointError(
                f"The checkpoint {path} cannot be read: {error}. {_advice(checkpoints, path)}"
            ) from error


def _require(content: Any) -> None:
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), Mapping):
        raise ValueError("it has no state_dict, so it is no checkpoint of CosmicTagger")


def _advice(checkpoints: Checkpoints, path: Path) -> str:
    others = (entry for _, entry in checkpoints.entries() if entry != path)
    try:
        whole, _ = checkpoints.newest_whole(others)
    except SerializationError as error:
        return str(error)
    if whole is None:
        return "There is no other one that is whole; start a new run with another run.id."
    return f"{whole.path} is whole; choose it with mode.weights_location={whole.path}"


def network_weights(content: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint by name, without a wrapper's ``module.`` prefix."""
    weights = content["state_dict"]
    if weights and all(name.startswith("module.") for name in weights):
        return {name.removeprefix("module."): value for name, value in weights.items()}
    return dict(weights)


_HEADS = ("classifier", "bottleneck_classifer", "vertex_", "bottleneck_vertex")


def check_fits(
    weights: Mapping[str, torch.Tensor], network: torch.nn.Module, path: Path | str
) -> None:
    """Raise if a checkpoint's weights do not match the network in names and shapes."""
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
        heads = [
            f" The checkpoint {verb} heads; see network.classification.active and "
            "network.vertex.active."
            for verb, names in (("lacks", missing), ("has", unknown))
            if any(name.startswith(_HEADS) for name in names)
        ]
        raise CheckpointError(
            f"The checkpoint {path} is of another network: of {len(tensors)} tensors, "
            f"{'; '.join(faults)}. Use the network= and network.* settings it was trained with."
            f"{heads[0] if heads else ''}"
        )


def _first(names: Sequence[str], count: int = 2) -> str:
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def weights_hash(weights: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bits of all weights and buffers."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(values.raw_bytes(value))
    return digest.hexdigest()
