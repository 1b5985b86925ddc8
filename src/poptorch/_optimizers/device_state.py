"""An optimizer's state on the device, by the names of users' state dictionaries.

The engine calls a state tensor ``fc.weight.exp_avg``; a state dictionary calls it
``Accl1___fc.weight``. One ``DeviceState`` belongs to each training wrapper and stands between the
wrapper's session and the optimizer object; both directions of copying happen here, and only when
somebody asks (reading) or at the next run (writing).

What an optimizer has from steps on the host, or ``torch.optim`` from loading, is in its ``state``
as torch keeps it. It goes to the device when a session begins, when another optimizer is set and
when ``torch.optim`` loads; that of ``torch.optim`` comes back when the session ends.
"""

import dataclasses
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from abele.runtime.session import Session
from abele.step import optimizers
from abele.step.update_rules import SCALARS, Group, UpdateRule
from abele.trace.tensor_names import state_name
from poptorch._error import error
from poptorch._logging import logger
from poptorch._optimizers.host import HostState

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
    """Optimizer state on the device of a wrapper.

    The wrapper owns this object and this object owns the optimizer; the optimizer refers back
    weakly. An optimizer of ``torch.optim`` has no copy of the device's state until the session
    ends.

    Attributes:
        pending: the optimizer has state that the device lacks; written at the next run.
        reread: the optimizer's groups were loaded; their values are sent at the next run.
        stale: the device may have newer state than the optimizer.
    """

    def __init__(self):
        self.pending = self.reread = self.stale = False
        self._optimizer: HostState | None = None
        self._torchs: torch.optim.Optimizer | None = None  # whichever is in use
        self._names: Mapping[int, str] = {}
        self._hook: Any = None  # on loading into an optimizer of torch.optim
        self._loaded = False  # since the last writing
        self._rule: UpdateRule | None = None
        self._session: Session | None = None

    @property
    def optimizer(self) -> HostState | None:
        """The optimizer in use, if it is one of this package's."""
        return self._optimizer

    @property
    def in_use(self) -> torch.optim.Optimizer | None:
        """The optimizer in use, of this package or of torch."""
        return self._torchs

    def use(self, optimizer: Any, rule: UpdateRule, names: Mapping[int, str]) -> None:
        """Take an optimizer and the rule it has become; another one is let go with its state.

        Args:
            optimizer: of this package or of torch.
            rule: what it has become.
            names: of the model's parameters, by ``id``.

        Raises:
            poptorch.Error: it has state on the host that the device has no place for.
        """
        problem = optimizers.problem(optimizer, rule, names)
        if problem is not None:
            raise error(
                f"The state of optimizer {type(optimizer).__name__} cannot go to the device: "
                f"{problem}. Load the state that was saved with this model and this kind of "
                "optimizer, or make the optimizer anew to begin without."
            )
        self._names = names
        another = optimizer is not self._torchs
        if another:
            self._follow(optimizer)
        if optimizer is not self._optimizer:
            self.release()
            if isinstance(optimizer, HostState):
                self._take(optimizer)
        self._rule, self.reread = rule, False
        self.pending = self.pending or (another and self._has_stepped())

    def _follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice from now on that a state dictionary is loaded into it."""
        self._torchs = optimizer
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        if not isinstance(optimizer, HostState):
            reference = weakref.ref(self)

            def loaded(_: torch.optim.Optimizer) -> None:
                state = reference()
                if state is not None:
                    state.pending = state.reread = state._loaded = True

            self._hook = optimizer.register_load_state_dict_post_hook(loaded)

    def _take(self, optimizer: HostState) -> None:
        other = optimizer._connection()
        if other is not None:
            other.release()
        optimizer._device = weakref.ref(self)
        self._optimizer = optimizer
        self.pending = optimizer.has_state()
        self.stale = self._session is not None  # this optimizer has not seen its state yet

    def release(self) -> None:
        """Leave the device's state with the optimizer and let go of it."""
        if self._optimizer is None:
            return
        self.fetch()
        self._optimizer._device = None
        self._optimizer, self.pending, self.reread = None, False, False

    def start(self, session: Session | None) -> None:
        """Attach to a session; None if the device is offline and nothing can be read."""
        self._session, self.stale = session, True
        has_values = self._optimizer is not None and self._optimizer.has_state()
        self.pending = has_values or bool(self._host_state())

    def stop(self) -> None:
        """Bring the state home, because the session ends."""
        self.fetch()
        if self._session is not None and self._torchs is not None and self._optimizer is None:
            self._bring_home(self._torchs, self._session)
        self._session, self.stale = None, False

    # -- as torch keeps it -----------------------------------------------------------------

    def _host_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's state on the host by slot, unless a device has newer state."""
        if self._torchs is None or (self._optimizer is not None and self._optimizer.has_state()):
            return {}
        return optimizers.host_state([self._torchs], self._names)

    def _has_stepped(self) -> bool:
        optimizer = self._torchs
        stepped = optimizer is not None and optimizers.has_stepped(optimizer)
        return stepped and bool(self._host_state())

    def _bring_home(self, optimizer: torch.optim.Optimizer, session: Session) -> None:
        optimizers.to_host([optimizer], self._names, session.read_updated_state())

    # -- device to host --------------------------------------------------------------------

    def fetch(self) -> None:
        """Bring the optimizer's dictionary up to date; copy only if the device has changed."""
        optimizer, session, rule = self._optimizer, self._session, self._rule
        if optimizer is None or session is None or rule is None:
            return
        if self.pending and self._host_state():
            self.write()
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
        """Send the optimizer's dictionary, or what it has on the host, to the device.

        Entries that are missing keep what the device has; unknown ones are announced.

        Raises:
            poptorch.Error: an entry has another shape than the device's.
        """
        optimizer, session = self._optimizer, self._session
        if session is None:
            return
        host = self._host_state()
        if host or self._loaded:
            self._write_slots(session, host)
        elif optimizer is not None:
            self._write_dictionary(session, optimizer._ipu_state or {})
            optimizer._host_is_newer = False
        self.pending = self._loaded = False

    def _write_slots(self, session: Session, state: Mapping[str, torch.Tensor]) -> None:
        slots = session.read_optimizer_state()
        matching = {name: value for name, value in state.items() if name in slots}
        for name, value in matching.items():
            if name.rpartition(".")[2] in SCALARS:  # one for every group of replicas
                matching[name] = value.expand(slots[name].shape)
            else:
                _check_shape(name, value, slots[name])
        if self._loaded and self._rule:  # what a loaded dictionary lacks begins again, as in torch
            matching = optimizers.initial_values(self._rule, slots) | matching
        session.write_optimizer_state(matching)

    def _write_dictionary(self, session: Session, state: Mapping[str, torch.Tensor]) -> None:
        slots = _named(session)
        # Gradient accumulators are zero between calls: without a slot there is nothing to lose.
        unknown = [n for n in state if n not in slots and not n.startswith(_ACCUMULATOR)]
        if unknown:
            logger.warning(
                "Ignoring entries of the optimizer state dictionary that this model's optimizer "
                "has no place for: %s",
                ", ".join(sorted(unknown)),
            )
        matching = {name: value for name, value in state.items() if name in slots}
        for name, value in matching.items():
            _check_shape(name, value, slots[name])
        device_state = session.read_optimizer_state()
        names = {slot: state_name(slot, device_state) for slot in device_state}
        session.write_optimizer_state(
            {slot: matching[name] for slot, name in names.items() if name in matching}
        )
        session.write_accumulators(
            {
                name.removeprefix(_ACCUMULATOR): value
                for name, value in matching.items()
                if name.startswith(_ACCUMULATOR)
            }
        )


def _named(session: Session) -> dict[str, torch.Tensor]:
    """Return the device's state tensors by the names of a state dictionary.

    PopTorch counts the steps of Adam and LAMB, and not those of RMSprop.
    """
    device_state = session.read_optimizer_state()
    named = {
        state_name(slot, device_state): value
        for slot, value in device_state.items()
        if not (slot.endswith(".step") and f"{slot[:-5]}.exp_avg" not in device_state)
    }
    sums = session.read_accumulators()
    return named | {f"{_ACCUMULATOR}{param}": value for param, value in sums.items()}


def _check_shape(name: str, value: torch.Tensor, slot: torch.Tensor) -> None:
    if value.shape != slot.shape:
        raise error(
            f"The optimizer state has {name} with shape {list(value.shape)}, the model "
            f"needs {list(slot.shape)}. Load a state that was saved with this model."
        )


def values_of(rule: UpdateRule) -> dict[str, torch.Tensor]:
    """Return the numbers a rule computes with, as 0-d float32 tensors under their public names.

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
