"""Checkpoints from which training resumes bit-exactly, in one process or several.

A `Checkpointer` runs the loop over epochs and batches, writes a file every so many steps and, when
the same program is started again, goes on behind the last one. The file holds weights, optimizer
state, buffers of every replica, random numbers, schedulers and the position in the data.
Instance 0 alone reads and writes; the others bring their parts and get theirs.

`torch.load(path, weights_only=True)["state_dict"]` are the weights for the plain model.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

import poptorch
from abele.collectives import Collective, broadcast_bytes, connected, gather_bytes
from abele.errors import CollectiveError, SerializationError, raised_as
from abele.runtime import host_random
from abele.storage import state_file, temporary, values
from abele.storage.checkpoint_folder import CheckpointFolder
from abele.warn import warn_user
from popdist._environment import CheckpointError, CheckpointWarning
from poptorch import processes, resuming

__all__ = ["CheckpointError", "CheckpointWarning", "Checkpointer"]


class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Checkpointer:
    """Checkpoints of a training run in a folder, from which the run resumes.

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
        """Yield the numbers of the remaining epochs; resumes from the newest checkpoint.

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
        """Yield the remaining batches of this epoch; a step counts when the next one is requested.

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
        """Count a step, and write a checkpoint if due; `batches` calls it.

        Raises:
            CheckpointError: See `save`.
        """
        self.steps += 1
        if self.steps % self.every == 0:
            self.save()

    def restore(self) -> bool:
        """Resume from the newest intact checkpoint; `epochs` calls it.

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
        content = _read(self.folder, self._model)
        if content is not None:
            self._put_back(content)
            self.steps, self.epoch = content["steps"], content["epoch"]
            self._saved = self.steps
        self._restored = True
        return content is not None

    def save(self) -> None:
        """Write a checkpoint of the current state; all instances have to call it.

        Raises:
            CheckpointError: It cannot be written; all instances raise it, and earlier checkpoints
                are still there. Or an object holds something that no file can.
            popdist.Error: Instances are at different steps or have different weights, or one is
                gone.
            poptorch.Error: The model has not run yet.
        """
        counts = {"steps": self.steps, "epoch": self.epoch}
        instances = Instances(self._model)
        joint, of_wrapper = _common(self._model, self._optimizer)
        mine = {**of_wrapper, **_of_instance(self._loader, self._others)}
        if instances.number > 1:
            facts = {name: str(value) for name, value in counts.items()}
            instances.agree({**facts, "hash of the weights": _digest(joint["tensors"])})
        parts = instances.bring(state_file.to_bytes(mine))
        problem = ""
        if instances.index == 0:
            each = [state_file.from_bytes(part) for part in parts]
            content = {"kind": KIND, "format": FORMAT, **counts, **joint, "instances": each}
            try:
                with raised_as(CheckpointError, SerializationError):
                    _checkpoints(self.folder, self.keep).write(self.steps, content)
            except CheckpointError as error:
                problem = str(error)
        instances.from_first(None, problem)
        self._saved = self.steps

    def _put_back(self, content: Mapping[str, Any]) -> None:
        """Restore model, optimizer, loader and other objects from a checkpoint."""
        mine = content["instances"][Instances(self._model).index]
        for what, there, here in (
            ("an optimizer", content["optimizer"] is not None, self._optimizer is not None),
            ("a loader", mine["loader"] is not None, self._loader is not None),
            (
                "other objects",
                ", ".join(mine["others"]) or "none",
                ", ".join(self._others) or "none",
            ),
        ):
            if there != here:
                raise CheckpointError(
                    f"The checkpoint and this checkpointer do not hold the same: {what} there: "
                    f"{_said(there)}; here: {_said(here)}. Make it with what it was made with "
                    "before."
                )
        if self._optimizer is not None:
            resuming.put_optimizer(self._optimizer, content["optimizer"])
        state = {
            "tensors": {**content["tensors"], **mine["buffers"]},
            "random": mine["random"],
            **{name: content[name] for name in ("told", "schedule", "device")},
        }
        resuming.put_back(self._model, state, self._optimizer)
        for name, each in self._others.items():
            each.load_state_dict(mine["others"][name])
        if self._loader is not None:
            replay = {"replay": True} if self._replay else {}
            self._loader.load_state_dict(mine["loader"], **replay)
        host_random.write(mine["host"])  # last: what comes before may draw


def _require_training(model: Any) -> None:
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


KIND = "popdist.checkpoint"
FORMAT = 1


def _prepare(folder: Path) -> None:
    """Create the checkpoint folder, check write access, and delete temporary files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        temporary.sweep(folder)
    except OSError as error:
        raise CheckpointError(
            f"Checkpoints are to be kept in {folder}, which cannot be written: {error}. Choose a "
            "folder that can."
        ) from error


def _newest(folder: Path) -> tuple[Path, bytes] | None:
    """Return path and bytes of the newest intact checkpoint; None if the run is new.

    Damaged ones that are newer are renamed, with a warning; if all are, none is.
    """
    checkpoints = _checkpoints(folder)
    with raised_as(CheckpointError, SerializationError):
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


def _checkpoints(folder: Path, keep: int = 1) -> CheckpointFolder:
    return CheckpointFolder(folder, "step", keep, _require)


def _require(content: Any) -> None:
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ValueError("it is no checkpoint of popdist")
    if content.get("format") != FORMAT:
        raise ValueError(f"its format is {content.get('format')}, not {FORMAT}")


class Instances:
    """The instances that train one model, as many as its wrapper's options specify."""

    def __init__(self, model: Any) -> None:
        several = resuming.processes_of(model) > 1
        if several:
            processes.connect(model.options)
        self._collective: Collective | None = connected() if several else None
        self.index = 0 if self._collective is None else self._collective.rank
        self.number = 1 if self._collective is None else self._collective.size

    def agree(self, facts: dict[str, str]) -> None:
        """Raise a `popdist.Error` unless all instances are at the same training step."""
        if self._collective is not None:
            with _collective_errors():
                self._collective.agree("the checkpoint", facts)

    def bring(self, part: bytes) -> list[bytes]:
        """Gather the bytes of all instances on every instance, by index."""
        if self._collective is None:
            return [part]
        with _collective_errors():
            return gather_bytes(self._collective, "parts", part)

    def from_first(self, data: bytes | None, problem: str = "") -> bytes | None:
        """Broadcast bytes of instance 0; raise its ``problem`` on all instances, if any."""
        if self._collective is not None:
            with _collective_errors():
                outcome = f"{'none' if data is None else 'bytes'} {problem}"
                kind, _, problem = self._collective.gather("outcome", outcome)[0].partition(" ")
                if not problem and kind == "bytes":
                    data = broadcast_bytes(self._collective, "size", data)
        if problem:
            raise CheckpointError(problem)
        return data


@contextlib.contextmanager
def _collective_errors() -> Iterator[None]:
    """Convert errors of collectives to `popdist.Error`."""
    try:
        yield
    except CollectiveError as problem:
        raise processes.problem_between(problem) from problem


_OWN = "buffers/"


def _common(model: Any, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the training state shared by all instances, and the wrapper's own of this instance."""
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


def _of_instance(loader: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of this instance outside the wrapper: random state, loader, others."""
    return {
        "host": host_random.read(),
        "loader": None if loader is None else _plain(loader.state_dict(), "loader"),
        "others": {name: _plain(each.state_dict(), name) for name, each in others.items()},
    }


def _said(what: bool | str) -> str:
    return what if isinstance(what, str) else ("yes" if what else "no")


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a short hash of the names and bits of tensors."""
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(name.encode())
        hasher.update(values.raw_bytes(tensors[name]))
    return hasher.hexdigest()[:16]


def _plain(value: Any, name: str) -> Any:
    try:
        return state_file.plain(value, name)
    except SerializationError as error:
        raise CheckpointError(f"No checkpoint can be made: {error}") from error


def _read(where: Path, model: Any) -> dict[str, Any] | None:
    """Return the content of the newest intact checkpoint; None if there is none."""
    instances = Instances(model)
    data, problem, path = None, "", where
    if instances.index == 0:
        try:
            _prepare(where)
            newest = _newest(where)
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
