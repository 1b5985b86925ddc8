"""Writing and reading a checkpoint together with the other instances."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from abele.storage import state_file
from popdist._checkpoint import content, folder
from popdist._checkpoint.sharing import Instances
from popdist._error import CheckpointError


def write(where: Path, keep: int, counts: Mapping[str, int], objects: Mapping[str, Any]) -> None:
    """Writes a checkpoint of this moment.

    Args:
        where: the folder.
        keep: how many files stay.
        counts: `steps` and `epoch`.
        objects: see `content.put_back`.
    """
    instances = Instances(objects["model"])
    joint, of_wrapper = content.common(objects["model"], objects["optimizer"])
    mine = {**of_wrapper, **content.of_instance(objects["loader"], objects["others"])}
    if instances.number > 1:
        facts = {name: str(value) for name, value in counts.items()}
        instances.agree({**facts, "hash of the weights": content.digest(joint["tensors"])})
    parts = instances.bring(state_file.to_bytes(mine))
    problem = ""
    if instances.index == 0:
        each = [state_file.from_bytes(part) for part in parts]
        try:
            folder.write(where, counts["steps"], {**counts, **joint, "instances": each}, keep)
        except CheckpointError as error:
            problem = str(error)
    instances.from_first(None, problem)


def read(where: Path, model: Any) -> dict[str, Any] | None:
    """The content of the newest checkpoint that is whole; None if there is none.

    Raises:
        CheckpointError: see `popdist.checkpoint.Checkpointer.restore`.
    """
    instances = Instances(model)
    data, problem, path = None, "", where
    if instances.index == 0:
        try:
            folder.prepare(where)
            newest = folder.newest(where)
            path, data = newest or (where, None)
        except CheckpointError as error:
            problem = str(error)
    data = instances.from_first(data, problem)
    if data is None:
        return None
    stored = state_file.from_bytes(data)
    number = len(stored["instances"])
    if number != instances.number:
        raise CheckpointError(
            f"The checkpoint in {path} was written by {number} instances, this run has "
            f"{instances.number}. Start it with as many as before, or begin a new run with its "
            'weights: torch.load(path, weights_only=True)["state_dict"].'
        )
    return stored


def put_back(stored: Mapping[str, Any], objects: Mapping[str, Any]) -> None:
    """Continues from what `read` returned."""
    content.put_back(stored, Instances(objects["model"]).index, objects)
