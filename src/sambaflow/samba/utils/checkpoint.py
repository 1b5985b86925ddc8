"""Weight files: sharded checkpoints and single tensors. Nothing is unpickled."""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch

from abele.storage import state_file
from sambaflow.errors import UsageError


def save_tensors(tensors: Mapping[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Write named tensors in torch's format, atomically."""
    copies = {name: torch.Tensor.detach(value).cpu() for name, value in tensors.items()}
    plain = {name: value.as_subclass(torch.Tensor) for name, value in copies.items()}
    state_file.write(Path(path), plain)


def load_sharded_checkpoint(
    model: torch.nn.Module, path: str | os.PathLike[str], ignore_dtype_mismatch: bool = False
) -> None:
    """Load weights from a folder of files in torch's format.

    Args:
        model: gets the weights.
        path: the folder; ``*.index.json`` with ``weight_map`` says which file has which weight,
            without it all ``*.bin`` and ``*.pt`` files are read.
        ignore_dtype_mismatch: convert weights of another dtype; otherwise they are refused.

    Raises:
        UsageError: files or weights are missing, damaged, or do not fit; names them.
    """
    stored: dict[str, torch.Tensor] = {}
    for file in _shards(Path(path)):
        if not file.is_file():
            raise UsageError(f"The checkpoint's file {file} is missing. Copy the whole folder.")
        stored |= _read(file)
    present = model.state_dict()
    missing = sorted(present.keys() ^ stored.keys())
    if missing:
        raise UsageError(
            f"{path} does not fit the model: {', '.join(missing[:8])} are on one side only. Load "
            "it into the model that it was made from."
        )
    wrong = [n for n in present if present[n].shape != stored[n].shape]
    if not ignore_dtype_mismatch:
        wrong += [n for n in present if present[n].dtype is not stored[n].dtype]
    if wrong:
        name = wrong[0]
        raise UsageError(
            f"{path} does not fit the model: {name} is {list(stored[name].shape)} "
            f"{stored[name].dtype} there, {list(present[name].shape)} {present[name].dtype} in the "
            "model. Load it into the model that it was made from; ignore_dtype_mismatch=True "
            "converts."
        )
    model.load_state_dict(stored)


def _read(file: Path) -> dict[str, torch.Tensor]:
    try:
        if zipfile.is_zipfile(file):
            return state_file.read(file)
        return torch.load(file, map_location="cpu", weights_only=True)  # of torch before 1.6
    except Exception as error:  # an unpickler fails in every possible way
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(
            f"The checkpoint's file {file} cannot be read: {reason}. Copy the whole folder again."
        ) from error


def _shards(folder: Path) -> list[Path]:
    indices = sorted(folder.glob("*.index.json"))
    if indices:
        names = json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / Path(name).name for name in dict.fromkeys(names)]
    files = sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    if not files:
        raise UsageError(f"{folder} has no *.index.json, *.bin or *.pt. Name the right folder.")
    return files
