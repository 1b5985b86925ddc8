"""Saving and restoring all state of a training wrapper, so that training resumes bit for bit.

A wrapper has a device only after its first call. A state restored before that call waits for it:
weights are copied to the user's module immediately, the rest when the session exists.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from abele.errors import SerializationError
from abele.runtime import host_random, state
from abele.trace.module_state import ModuleState
from poptorch._error import error
from poptorch._logging import logger
from poptorch._optim.reading import settings
from poptorch._optim.state import OptimizerInUse
from poptorch._state.weights import Weights, read_random_state, write_random_state
from poptorch._wrapper.compiled import WrappedModel


@dataclasses.dataclass(frozen=True)
class PendingState:
    """A saved state to restore once the session exists, unless a later optimizer overrides it."""

    kept: Mapping[str, Any]
    times_set: int


class Resuming:
    """Saves and restores the training state of a wrapped model."""

    def __init__(self, model: WrappedModel, optimizer: OptimizerInUse, weights: Weights):
        self._model, self._optimizer, self._weights = model, optimizer, weights
        self._pending: PendingState | None = None

    def state(self) -> dict[str, Any]:
        """Return the training state of a wrapper, for resuming.

        Returns:
            ``tensors``: parameters, buffers of each replica, optimizer state, values and counters
            by ``kind/name``; ``random``: its random numbers; ``told``: the optimizer's values as
            last set; ``schedule``: options that must be equal on restoring; ``device``: its type;
            ``programs``: a text on the running programs.

        Raises:
            poptorch.Error: not compiled, so that there is no state yet.
        """
        session = self._model.session
        has_numbers = session.random_state is not None or session.device.type != "cpu"
        return {
            # Copies: the next call changes the device's own in place.
            "tensors": {k: v.clone() for k, v in self._weights.present_state().items()},
            "random": read_random_state(session) if has_numbers else None,
            "told": dict(self._optimizer.values()),
            "schedule": self._schedule(),
            "device": session.device.type,
            "programs": self._model.get_compiled().record.running.sentence(),
        }

    def named_weights(self, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return saved weights under the module's own names, for ``load_state_dict``.

        Args:
            tensors: of ``state``; buffers are those of the first replica.
        """
        module = self._model.user_module
        wanted = module.state_dict(keep_vars=True).keys()
        weights = {}
        for kind, named in (
            (state.PARAMS, module.named_parameters(remove_duplicate=False)),
            (f"{state.BUFFERS}/0", module.named_buffers(remove_duplicate=False)),
        ):
            first: dict[int, str] = {}
            for name, value in named:
                if name in wanted:
                    weights[name] = tensors[f"{kind}/{first.setdefault(id(value), name)}"]
        return weights

    def put_back(self, kept: Mapping[str, Any], optimizer: Any) -> None:
        """Restore a saved training state; before the first call, it is restored at that call.

        Buffers and random numbers may be of another process of the same run. The optimizer is the
        one in use, with its groups restored; None if there is no object.
        """
        self._check(kept)
        self._pending = None  # of an earlier call
        if optimizer is not None:
            self._optimizer.use(optimizer)
        self._pending = PendingState(kept, self._optimizer.times_set)
        if self._model.compiled is not None:
            self._write()
            return
        host = ModuleState.of(self._model.user_module)
        with torch.no_grad():
            for name, value in host.params.items():
                if name not in self._model.per_replica_params:
                    value.copy_(kept["tensors"][f"{state.PARAMS}/{name}"])
            for name, value in host.buffers.items():
                value.copy_(kept["tensors"][f"{state.BUFFERS}/0/{name}"])
        self._weights.shared.version += 1

    @contextlib.contextmanager
    def around_compiling(self) -> Iterator[None]:
        """Restore a pending training state after the block, which creates a session."""
        if self._pending is None:
            yield
            return
        before = host_random.read()
        yield
        host_random.write(before)
        self._write()

    def _write(self) -> None:
        session, pending = self._model.session, self._pending
        assert pending is not None
        kept = pending.kept
        try:
            state.put(session, kept["tensors"])
        except SerializationError as problem:
            raise error(f"The state of another model was put back: {problem}") from problem
        self._pending = None
        if kept["random"] is not None and kept["device"] == session.device.type:
            write_random_state(session, kept["random"])
        elif kept["device"] != session.device.type:
            logger.warning(
                "The state is of device type %s: its random numbers do not continue on %s.",
                kept["device"],
                session.device.type,
            )
        self._weights.mark_changed()
        was_set = self._optimizer.times_set > pending.times_set
        self._optimizer.restore_values(kept["told"], was_set=was_set)

    def _schedule(self) -> dict[str, str]:
        """Return the options that determine how a call splits its batch, as text."""
        config = self._model.config
        fields = {**config.compile_fields(), "device_iterations": config.device_iterations}
        return {name: str(value) for name, value in fields.items()}

    def _check(self, kept: Mapping[str, Any]) -> None:
        here, there = self._schedule(), kept["schedule"]
        unlike = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        if unlike:
            listed = ", ".join(f"{n} {there.get(n)} there, {here.get(n)} here" for n in unlike)
            raise error(
                f"The state was kept with other options: {listed}. Use the same ones to go on, or "
                "load the weights alone."
            )
        _check_tensors(self._model, kept["tensors"])


def _check_tensors(model: WrappedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    host = ModuleState.of(model.user_module)
    named = {f"{state.PARAMS}/{name}": value for name, value in host.params.items()}
    named |= {f"{state.BUFFERS}/0/{name}": value for name, value in host.buffers.items()}
    kinds = (f"{state.PARAMS}/", f"{state.BUFFERS}/0/")
    groups = {f"{state.PARAMS}/{name}" for name in model.per_replica_params}  # of other shapes
    here = {n: _form(v, shaped=n not in groups) for n, v in named.items()}
    there = {n: _form(v, shaped=n not in groups) for n, v in tensors.items() if n.startswith(kinds)}
    different = [
        f"{name.partition('/')[2].removeprefix('0/')}: {there.get(name, 'missing')} there, "
        f"{here.get(name, 'missing')} here"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    if different:
        raise error(
            f"The state is of another model; {len(different)} of {len(here)} tensors differ: "
            f"{'; '.join(different[:4])}. Make the model as it was when the state was kept."
        )


def _form(value: torch.Tensor, *, shaped: bool) -> str:
    return f"{list(value.shape)} {value.dtype}" if shaped else str(value.dtype)


# -- the optimizer object --------------------------------------------------------------------


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's host state: class, groups and further attributes.

    Its device state, moments and counts, is in the state of the wrapper.

    Args:
        optimizer: of torch or of ``poptorch.optim``.
    """
    torchs = torch.optim.Optimizer.state_dict(optimizer)
    return {"class": type(optimizer).__name__, **torchs, "values": _values(optimizer)}


def put_optimizer(optimizer: torch.optim.Optimizer, kept: Mapping[str, Any]) -> None:
    """Restore an optimizer's host state from ``optimizer_state``.

    Args:
        optimizer: created with the same arguments as the saved one.
        kept: the saved state.

    Raises:
        poptorch.Error: another class, other groups, or values that cannot change have changed.
    """
    kind = type(optimizer).__name__
    if kind != kept["class"]:
        raise error(
            f"The state is of optimizer {kept['class']}, this one is {kind}. Use the same class."
        )
    here, there = _values(optimizer), kept["values"]
    variable = here.get("variable attributes", [])
    unlike = [n for n in {**there, **here} if n not in variable and here.get(n) != there.get(n)]
    if unlike:
        listed = ", ".join(f"{n} {there.get(n)} there, {here.get(n)} here" for n in unlike)
        raise error(
            f"The state is of an optimizer with other values: {listed}. Make it as it was when the "
            "state was kept."
        )
    for name in variable:
        if name in there:
            setattr(optimizer, name, there[name])
    try:
        torch.optim.Optimizer.load_state_dict(
            optimizer, {"state": kept["state"], "param_groups": kept["param_groups"]}
        )
    except ValueError as problem:
        raise error(f"The state is of an optimizer with other groups: {problem}") from problem


def _values(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's attributes that only ``poptorch.optim`` has, not ``torch.optim``."""
    attributes = getattr(optimizer, "variable_attrs", None)
    if attributes is None:
        return {}
    common = {"state", "defaults", "param_groups", "variable_attrs"}
    names = [name for name in settings(optimizer) if name not in common]
    values = {name: getattr(optimizer, name) for name in names}
    return {**values, "variable attributes": sorted(attributes._variable_attributes)}
