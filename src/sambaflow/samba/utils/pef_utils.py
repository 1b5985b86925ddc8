"""Metadata of a compiled PEF file."""

import os
from typing import Any

import torch

from sambaflow.samba import _pef


def get_pefmeta(args: Any, model: torch.nn.Module) -> dict[str, Any]:
    """Return the metadata that ``session.compile`` stores: model, parameters, batch, mode."""
    return {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch_size": getattr(args, "batch_size", None),
        "inference": bool(getattr(args, "inference", False)),
        "mapping": getattr(args, "mapping", "section"),
    }


def get_pefmeta_dict(pef: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the metadata of a PEF file without loading its code.

    Returns:
        What was given to ``session.compile`` as ``pef_metadata``, and ``name``, ``target``,
        ``version``, ``config``, ``inputs``, ``outputs`` and ``programs``.

    Raises:
        PefDamagedError: there is no such file, or it is damaged.
    """
    with _pef.opened(pef) as file:
        content = file.content
        about = content["about"]
        return {
            **about["metadata"],
            "name": about["name"],
            "target": about["target"],
            "version": content["version"],
            "config": about["config"],
            "inputs": content["inputs"],
            "outputs": content["outputs"],
            "programs": content["executable"]["programs"],
        }
