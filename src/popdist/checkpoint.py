"""Checkpoints from which training goes on to the bit, in one process or in several.

A `Checkpointer` runs the loop over epochs and batches, writes a file every so many steps and, when
the same program is started again, goes on behind the last one. The file holds weights, optimizer
state, buffers of every replica, random numbers, schedulers and the position in the data.
Instance 0 alone reads and writes; the others bring their parts and get theirs.

`torch.load(path, weights_only=True)["state_dict"]` are the weights for the plain model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from popdist._error import CheckpointError, CheckpointWarning

__all__ = ["CheckpointError", "CheckpointWarning", "Checkpointer"]


class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Checkpointer:
    """Keeps a run in a folder, and goes on with it.

        checkpointer = popdist.checkpoint.Checkpointer(
            "checkpoints", model=training, optimizer=optimizer, loader=loader, scheduler=scheduler
        )
        for epoch in checkpointer.epochs(3):
            for x, y in checkpointer.batches():
                loss = training(x, y)
            scheduler.step()
            training.setOptimizer(optimizer)

    The program makes its objects as at the first start. What is in the checkpoint then takes the
    place of their state, including learning rates.

    Args:
        folder: Where the files are; instance 0 needs to reach it. Made if it is not there.
        model: What `poptorch.trainingModel` returned.
        optimizer: The one it was given; None where it has none of its own.
        loader: What `batches` iterates over: a `poptorch.DataLoader`, or another with
            `state_dict` and `load_state_dict`.
        every: Steps from one checkpoint to the next.
        keep: How many files stay; older ones are deleted after a newer one is complete.
        replay: Read the batches of an interrupted epoch again instead of stepping over them; for
            data sets that draw random numbers in worker processes, see
            `poptorch.DataLoader.load_state_dict`.
        **others: Further objects with `state_dict` and `load_state_dict`, such as schedulers, by
            name. Each instance has its own.

    Attributes:
        steps: Steps made since the run was first started.
        epoch: The number of the epoch, from 0.

    Raises:
        CheckpointError: An argument is not legal.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: Any,
        optimizer: Any = None,
        loader: Any = None,
        every: int = 100,
        keep: int = 2,
        replay: bool = False,
        **others: _Stateful,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise CheckpointError(f"{name} is a number of 1 or more, not {value!r}")
        _require_training(model)
        _require_state({**others} | ({} if loader is None else {"loader": loader}))
        self.folder, self.every, self.keep = Path(folder), every, keep
        self.steps = self.epoch = 0
        self._model, self._optimizer, self._loader = model, optimizer, loader
        self._others, self._replay = others, replay
        self._saved: int | None = None
        self._restored = False

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs that are left, by number; goes on with the newest checkpoint.

        At the end a last checkpoint is written, so that a run that is complete stays complete.

        Args:
            number: How many epochs the whole run has.

        Raises:
            CheckpointError: See `restore` and `save`.
        """
        self.restore()
        while self.epoch < number:
            yield self.epoch
            self.epoch += 1
        if self.steps and self._saved != self.steps:
            self.save()

    def batches(self) -> Iterator[Any]:
        """The batches that are left of this epoch; a step is made when the next one is asked for.

        Raises:
            CheckpointError: There is no loader; see also `save`.
        """
        if self._loader is None:
            raise CheckpointError("batches() needs a loader: Checkpointer(..., loader=loader)")
        self.restore()
        for batch in self._loader:
            yield batch
            self.step()

    def step(self) -> None:
        """Count a step, and write a checkpoint when one is due; `batches` calls it.

        Raises:
            CheckpointError: See `save`.
        """
        self.steps += 1
        if self.steps % self.every == 0:
            self.save()

    def restore(self) -> bool:
        """Go on with the newest checkpoint that is whole; `epochs` calls it.

        Only the first call does something. If a file is damaged, the one before it is taken, and
        the damaged one is renamed, with a warning.

        Returns:
            Whether there was one.

        Raises:
            CheckpointError: All are damaged or set aside, a file cannot be read, the folder cannot
                be written, or the checkpoint is of another number of instances or of other
                objects.
            poptorch.Error: It is of another model, optimizer or loader, or of other options.
        """
        if self._restored:
            return self._saved is not None
        from popdist._checkpoint import restoring

        content = restoring.read(self.folder, self._model)
        if content is not None:
            restoring.put_back(content, self._objects())
            self.steps, self.epoch = content["steps"], content["epoch"]
            self._saved = self.steps
        self._restored = True
        return content is not None

    def save(self) -> None:
        """Write a checkpoint of this moment; with several instances, all have to call it.

        Raises:
            CheckpointError: It cannot be written; all instances raise it, and earlier checkpoints
                are still there. Or an object holds something that no file can.
            popdist.Error: Instances are at different steps or have different weights, or one is
                gone.
            poptorch.Error: The model has not run yet.
        """
        from popdist._checkpoint import restoring

        counts = {"steps": self.steps, "epoch": self.epoch}
        restoring.write(self.folder, self.keep, counts, self._objects())
        self._saved = self.steps

    def _objects(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "optimizer": self._optimizer,
            "loader": self._loader,
            "others": self._others,
            "replay": self._replay,
        }


def _require_training(model: Any) -> None:
    # Here, because importing this package loads no torch.
    import poptorch
    from poptorch import resuming

    if resuming.is_training_wrapper(model):
        return
    inference = isinstance(model, poptorch.PoplarExecutor)
    kind = "wrapper for inference" if inference else type(model).__name__
    raise CheckpointError(f"model should be what poptorch.trainingModel returned, found a {kind}")


def _require_state(objects: dict[str, Any]) -> None:
    for name, each in objects.items():
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise CheckpointError(
                f"{name} is a {type(each).__name__} without state_dict and load_state_dict, so it "
                "cannot go on where it was. Use poptorch.DataLoader for data; give other objects "
                "both methods."
            )
