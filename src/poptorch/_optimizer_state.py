"""An optimizer's state on the device, under the names that a user's checkpoint has for it.

The engine calls a state tensor ``fc.weight.exp_avg``; a state dictionary calls it
``Accl1___fc.weight``. One ``DeviceState`` belongs to each training wrapper and stands between the
wrapper's session and the optimizer object; both directions of copying happen here, and only when
somebody asks (reading) or at the next run (writing).
"""

import dataclasses
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from abele.runtime.session import Session
from abele.tensor_names import state_name
from abele.update_rules import Group, UpdateRule
from poptorch import optim
from poptorch._error import error
from poptorch._logging import logger

_ACCUMULATOR = "Accum___"

_COMMON = {"lr": "learningRate", "weight_decay": "weightDecay"}
_BETAS = {"beta1": "adamBeta1", "beta2": "adamBeta2", "eps": "adamEps"}
_VALUE_NAMES: Mapping[str, Mapping[str, str]] = {
    "adam": {**_COMMON, **_BETAS},
    "lamb": {**_COMMON, **_BETAS, "max_weight_norm": "maxWeightNorm"},
    "rmsprop": {
        **_COMMON,
        "alpha": "adaptiveAlpha",
        "momentum": "adaptiveMomentum",
        "eps": "adaptiveEps",
    },
}


class DeviceState:
    """What one wrapper's device holds for its optimizer.

    The wrapper owns this object and this object owns the optimizer; the optimizer refers back
    weakly. An optimizer of ``torch.optim`` has no host copy: its state stays in the session.

    Attributes:
        pending: the optimizer has state that the device lacks; written at the next run.
        reread: the optimizer's groups were loaded; their values are sent at the next run.
        stale: the device may have newer state than the optimizer.
    """

    def __init__(self):
        self.pending = self.reread = self.stale = False
        self._optimizer: optim.Optimizer | None = None
        self._rule: UpdateRule | None = None
        self._session: Session | None = None

    @property
    def optimizer(self) -> optim.Optimizer | None:
        """The optimizer in use, if it is one of this package's."""
        return self._optimizer

    def use(self, optimizer: Any, rule: UpdateRule) -> None:
        """Takes an optimizer and the rule it has become; another one is let go with its state."""
        if optimizer is not self._optimizer:
            self.release()
            if isinstance(optimizer, optim.Optimizer):
                self._take(optimizer)
        self._rule, self.reread = rule, False

    def _take(self, optimizer: optim.Optimizer) -> None:
        other = optimizer._connection()
        if other is not None:
            other.release()
        optimizer._device = weakref.ref(self)
        self._optimizer = optimizer
        self.pending = optimizer.has_state()
        self.stale = self._session is not None  # this optimizer has not seen its state yet

    def release(self) -> None:
        """Leaves the device's state with the optimizer and lets go of it."""
        if self._optimizer is None:
            return
        self.fetch()
        self._optimizer._device = None
        self._optimizer, self.pending, self.reread = None, False, False

    def start(self, session: Session | None) -> None:
        """A session has begun; None where the device is offline and nothing can be read."""
        self._session, self.stale = session, True
        self.pending = self._optimizer is not None and self._optimizer.has_state()

    def stop(self) -> None:
        """Brings the state home, because the session ends."""
        self.fetch()
        self._session, self.stale = None, False

    # -- device to host --------------------------------------------------------------------

    def fetch(self) -> None:
        """Brings the optimizer's dictionary up to date; copies only if the device has changed."""
        optimizer, session, rule = self._optimizer, self._session, self._rule
        if optimizer is None or session is None or rule is None:
            return
        if self.stale:
            fetched = {name: value.to("cpu", copy=True) for name, value in _named(session).items()}
            # What waits to be written is newer than what the device holds.
            waiting = (optimizer._ipu_state or {}) if self.pending else {}
            optimizer._ipu_state = {**fetched, **waiting}
            self.stale = False
        if rule.automatic_scaling is not None:
            rule = dataclasses.replace(rule, loss_scaling=session.hyper["loss_scaling"].item())
        optimizer._ipu_param = values_of(rule)

    # -- host to device --------------------------------------------------------------------

    def write(self) -> None:
        """Sends the optimizer's dictionary to the device.

        Entries that are missing keep what the device has; unknown ones are announced.

        Raises:
            poptorch.Error: an entry has another shape than the device's.
        """
        optimizer, session = self._optimizer, self._session
        if optimizer is None or session is None:
            return
        slots = _named(session)
        found = optimizer._ipu_state or {}
        # Gradient accumulators are zero between calls: without a slot there is nothing to lose.
        unknown = [n for n in found if n not in slots and not n.startswith(_ACCUMULATOR)]
        if unknown:
            logger.warning(
                "Ignoring entries of the optimizer state dictionary that this model's optimizer "
                "has no place for: %s",
                ", ".join(sorted(unknown)),
            )
        known = {name: value for name, value in found.items() if name in slots}
        for name, value in known.items():
            _check_shape(name, value, slots[name])
        held = session.read_optimizer_state()
        names = {slot: state_name(slot, held) for slot in held}
        session.write_optimizer_state(
            {slot: known[name] for slot, name in names.items() if name in known}
        )
        session.write_accumulators(
            {
                name.removeprefix(_ACCUMULATOR): value
                for name, value in known.items()
                if name.startswith(_ACCUMULATOR)
            }
        )
        self.pending = False
        optimizer._host_is_newer = False


def _named(session: Session) -> dict[str, torch.Tensor]:
    """The device's state tensors by the names of a state dictionary."""
    held = session.read_optimizer_state()
    found = {state_name(slot, held): value for slot, value in held.items()}
    sums = session.read_accumulators()
    return found | {f"{_ACCUMULATOR}{param}": value for param, value in sums.items()}


def _check_shape(name: str, value: torch.Tensor, slot: torch.Tensor) -> None:
    if value.shape != slot.shape:
        raise error(
            f"The optimizer state dictionary has {name} with shape {list(value.shape)}, the model "
            f"needs {list(slot.shape)}. Load a dictionary that was saved with this model."
        )


def values_of(rule: UpdateRule) -> dict[str, torch.Tensor]:
    """The numbers a rule computes with, as 0-d float32 tensors under their public names.

    Each exists once per parameter (``learningRate___specific___fc.weight``); those of the first
    group are the default of all (``learningRate___default___FLOAT``).
    """
    numbers = {"lossScaling_FLOAT": rule.loss_scaling}
    for index, group in enumerate(rule.groups):
        for name, value in _group_values(rule, group):
            if index == 0:
                numbers[f"{name}___default___FLOAT"] = value
            numbers |= {f"{name}___specific___{param}": value for param in group.params}
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in numbers.items()}


def _group_values(rule: UpdateRule, group: Group) -> Iterator[tuple[str, float]]:
    values = group.values
    if rule.kind == "sgd":
        rate = values["lr"] * (1 - values["dampening"])
        yield "scaledLearningRate0", rate / rule.loss_scaling
        yield "weightDecayScaleFactor0", 1 - rate * values["weight_decay"]
        return
    for name, public in _VALUE_NAMES[rule.kind].items():
        yield public, float(values[name])
