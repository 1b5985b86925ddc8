"""What is in a checkpoint: one part that all instances have in common, and one of each.

Weights, optimizer state and values are equal in all instances, so they are stored once. Statistics
of batches, random numbers and positions in the data are each instance's own.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from abele.errors import SerializationError
from abele.runtime import host_random
from abele.storage import digests, state_file
from popdist._error import CheckpointError
from poptorch import resuming

_OWN = "buffers/"


def common(model: Any, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What all instances have in common, and the rest of the wrapper's state.

    Raises:
        poptorch.Error: the model has not run yet.
        CheckpointError: the optimizer holds something that no file can.
    """
    state = resuming.state_of(model)
    tensors = _plain(state.pop("tensors"), "model")
    shared = {name: value for name, value in tensors.items() if not name.startswith(_OWN)}
    buffers = {name: value for name, value in tensors.items() if name.startswith(_OWN)}
    joint = {
        "state_dict": resuming.named_weights(model, tensors),
        "tensors": shared,
        "told": state["told"],
        "schedule": state["schedule"],
        "device": state["device"],
        "programs": state["programs"],
        "optimizer": None if optimizer is None else resuming.optimizer_state(optimizer),
    }
    return _plain(joint, "optimizer"), {"buffers": buffers, "random": state["random"]}


def of_instance(loader: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    """What only this instance knows, outside of the wrapper.

    Raises:
        CheckpointError: an object holds something that no file can.
    """
    return {
        "host": host_random.read(),
        "loader": None if loader is None else _plain(loader.state_dict(), "loader"),
        "others": {name: _plain(each.state_dict(), name) for name, each in others.items()},
    }


def put_back(content: Mapping[str, Any], index: int, objects: Mapping[str, Any]) -> None:
    """Continues from the content of a file.

    Args:
        content: of the file.
        index: of this instance.
        objects: `model`, `optimizer`, `loader`, `others` and `replay` of the checkpointer.

    Raises:
        CheckpointError: it is of other objects.
        poptorch.Error: the same, of model, optimizer or loader.
    """
    mine = content["instances"][index]
    optimizer, others, loader = objects["optimizer"], objects["others"], objects["loader"]
    for what, there, here in (
        ("an optimizer", content["optimizer"] is not None, optimizer is not None),
        ("a loader", mine["loader"] is not None, loader is not None),
        ("other objects", ", ".join(mine["others"]) or "none", ", ".join(others) or "none"),
    ):
        if there != here:
            raise CheckpointError(
                f"The checkpoint and this checkpointer do not hold the same: {what} there: "
                f"{_said(there)}; here: {_said(here)}. Make it with what it was made with before."
            )
    if optimizer is not None:
        resuming.put_optimizer(optimizer, content["optimizer"])
    state = {
        "tensors": {**content["tensors"], **mine["buffers"]},
        "random": mine["random"],
        **{name: content[name] for name in ("told", "schedule", "device")},
    }
    resuming.put_back(objects["model"], state, optimizer)
    for name, each in others.items():
        each.load_state_dict(mine["others"][name])
    if loader is not None:
        replay = {"replay": True} if objects["replay"] else {}
        loader.load_state_dict(mine["loader"], **replay)
    host_random.write(mine["host"])  # last: what comes before may draw


def _said(what: bool | str) -> str:
    return what if isinstance(what, str) else ("yes" if what else "no")


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """A short hash of names and bits."""
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(name.encode())
        hasher.update(digests.raw_bytes(tensors[name]))
    return hasher.hexdigest()[:16]


def _plain(value: Any, name: str) -> Any:
    try:
        return state_file.plain(value, name)
    except SerializationError as error:
        raise CheckpointError(f"No checkpoint can be made: {error}") from error
