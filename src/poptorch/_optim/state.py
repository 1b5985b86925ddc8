"""An optimizer's state on the host and on the device, and the optimizer of one wrapper.

The engine calls a state tensor ``fc.weight.exp_avg``; a state dictionary calls it
``Accl1___fc.weight``. One ``OptimizerInUse`` belongs to each wrapper and is between the wrapper's
session and the optimizer object. Both directions of copying happen here, and only when somebody
asks (reading) or at the next run (writing). The optimizer has a weak reference to it, so that
optimizers can be copied and kept without keeping a device.

What an optimizer has from steps on the host, or ``torch.optim`` from loading, is in its ``state``
as torch keeps it. It goes to the device when a session begins, when another optimizer is set and
when ``torch.optim`` loads; that of ``torch.optim`` comes back when the session ends.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch

from abele.capture import gradient_hooks
from abele.runtime.session import Session
from abele.step import optimizers
from abele.step.update_rules import SCALARS, Group, UpdateRule
from abele.storage.values import bits
from abele.trace.module_state import parameter_names
from abele.trace.tensor_names import state_name
from poptorch._error import error
from poptorch._logging import logger
from poptorch._optim import reading
from poptorch._wrapper import translate
from poptorch._wrapper.compiled import WrappedModel


class HostState:
    """Base of this package's optimizers, mixed in before torch's class.

    Attributes:
        variable_attrs: which values may change after compilation.
    """

    variable_attrs: Any

    # On the class, so that an object out of any copy or file has them.
    _ipu_state: dict[str, torch.Tensor] | None = None
    _ipu_param: dict[str, torch.Tensor] | None = None
    _host_is_newer = False
    _device: "weakref.ref[Any] | None" = None

    def _connection(self) -> Any | None:
        """Return the ``OptimizerInUse`` of the live wrapper that runs this optimizer."""
        return None if self._device is None else self._device()

    @property
    def host_state_is_dirty(self) -> bool:
        """True if state waits for the next run to send it to the device."""
        connection = self._connection()
        return self._host_is_newer or (connection is not None and connection.pending)

    @property
    def ipu_state_is_dirty(self) -> bool:
        """True if the device has run since its state was last read."""
        connection = self._connection()
        return connection is not None and connection.stale

    def has_state(self) -> bool:
        """Return whether device state is known here: read from the device or loaded."""
        return self._ipu_state is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the device's state and values, and groups and host state as in torch.

        Copies from the device only if it has run since the last time.

        Returns:
            ``ipu_state``: state tensors on the host by name, ``Accl1___fc.weight`` for the
            momentum or first moment of ``fc.weight`` and so on; ``ipu_param``: the numbers in use,
            0-d float32 tensors; both None before anything is compiled. ``state`` and
            ``param_groups``: torch's own.
        """
        self._fetch()
        return {**self.get_state_dict(), **super().state_dict()}  # type: ignore[misc]

    def get_state_dict(self) -> dict[str, Any]:
        """``ipu_state`` and ``ipu_param`` as last read or loaded, without asking the device."""
        return {
            name: None if values is None else dict(values)
            for name, values in (("ipu_state", self._ipu_state), ("ipu_param", self._ipu_param))
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load groups, host state and, at the next run, the device's state.

        Entries that ``ipu_state`` lacks keep the device's value. A dictionary that was saved
        before compiling brings its groups only.

        Differs from the original: values of the groups win over edited ones in ``ipu_param``, of
        which only a variable loss scaling is used.

        Args:
            state: what ``state_dict`` of an optimizer of poptorch.optim returned.

        Raises:
            RuntimeError: it is empty, or a state of ``torch.optim``.
        """
        _check_is_ipu_state(state)
        torchs = {name: state[name] for name in ("state", "param_groups") if name in state}
        if torchs:
            super().load_state_dict({"state": {}, **torchs})  # type: ignore[misc]
        self.set_state_dict(state)

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Take ``ipu_state`` and ``ipu_param`` for the device; groups stay as they are.

        Args:
            state: a dictionary with both keys, as ``get_state_dict`` returns it.

        Raises:
            RuntimeError: the dictionary is empty or lacks these keys.
        """
        _check_is_ipu_state(state)
        self._fetch()
        self._take_loss_scaling(state["ipu_param"] or {})
        connection = self._connection()
        if connection is not None:
            connection.reread = True
        if state["ipu_state"] is None:
            return
        # Clones: the upload comes later, and the caller's tensors may have changed by then.
        loaded = {name: value.detach().cpu().clone() for name, value in state["ipu_state"].items()}
        self._ipu_state = {**(self._ipu_state or {}), **loaded}
        self._ipu_param = dict(state["ipu_param"] or {})
        self._host_is_newer = True
        if connection is not None:
            connection.pending = True

    def _take_loss_scaling(self, values: dict[str, torch.Tensor]) -> None:
        stored = values.get("lossScaling_FLOAT")
        optimizer: Any = self
        if stored is None or self.variable_attrs.isConstant("loss_scaling"):
            return
        # Numbers travel as float32: one that has not changed keeps its digits.
        if torch.tensor(optimizer.loss_scaling, dtype=torch.float32) != stored:
            optimizer.loss_scaling = float(stored)

    def _fetch(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection.fetch()

    def __getstate__(self) -> dict[str, Any]:
        # torch's own keeps only state and groups, so that copies would lose what is added here.
        self._fetch()
        state = cast(dict[str, Any], super().__getstate__())
        values = {name: getattr(self, name) for name in reading.settings(self)}
        return {
            **values,
            "_ipu_state": self._ipu_state,
            "_ipu_param": self._ipu_param,
            "_host_is_newer": self._host_is_newer,
            **state,
        }


def _check_is_ipu_state(state: dict[str, Any]) -> None:
    if not state:
        raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
    if not ("ipu_state" in state and "ipu_param" in state):
        raise RuntimeError(
            "Only IPU optimizer states can be loaded onto the IPU. Load what state_dict() of an "
            f"optimizer of poptorch.optim returned; found a dictionary with {sorted(state)}."
        )


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


class OptimizerInUse:
    """Optimizer of a wrapper, and its state on the device.

    That of an inference wrapper has no rule. The wrapper owns this object and this object owns the
    optimizer. An optimizer of ``torch.optim`` has no copy of the device's state until the session
    ends.

    Args:
        model: the wrapped model.
        rule: the rule of a model out of a file, whose optimizer object is not there.

    Attributes:
        rule: the rule of the optimizer; None without one.
        in_use: the optimizer in use, of this package or of torch.
        optimizer: the optimizer in use, if it is one of this package's.
        pending: the optimizer has state that the device lacks; written at the next run.
        reread: the optimizer's groups were loaded; their values are sent at the next run.
        stale: the device may have newer state than the optimizer.
        restored: the values that a kept state has put on the device, where they are not the rule's.
        times_set: how often an optimizer was set.
        changed: called when values were set.
    """

    def __init__(self, model: WrappedModel, rule: UpdateRule | None = None):
        self._model, self.rule = model, rule
        self._watch = reading.AttributeWatch(relaxed=model.options._relax_optimizer_checks)
        self.pending = self.reread = self.stale = False
        self.optimizer: HostState | None = None
        self.in_use: torch.optim.Optimizer | None = None
        self.restored: dict[str, float] | None = None
        self.times_set = 0
        self.changed: Callable[[], None] = lambda: None
        self._names: Mapping[int, str] = {}  # of the model's parameters, by ``id``
        self._hook: Any = None  # on loading into an optimizer of torch.optim
        self._loaded = False  # since the last writing
        self._session: Session | None = None
        self._rate: Any = None  # of the first group, when it was sent last
        self._rate_is_watched = True  # until it was warned of

    def use(self, optimizer: Any) -> None:
        """Send an optimizer's values to the device, or keep them for compiling.

        Another one than before is released with its state.

        Args:
            optimizer: the one in use, or another of the same class and number of groups.

        Raises:
            poptorch.Error: a value that was compiled in has changed, or the optimizer has state on
                the host that the device has no slot for.
            AssertionError: unsupported optimizer class.
            ValueError: half accumulators are asked for after compiling without them.
        """
        model = self._model
        compiled_rule = None if model.compiled is None else self.rule
        reading.choose_reduction(model.options, optimizer, compiled_rule)
        if model.compiled is None:
            model.read_options()
        self._names = parameter_names(model.module)
        before, self.rule = self.rule, self._rule_of(optimizer)
        self.times_set += 1
        self._connect(optimizer, self.rule, before)
        self._rate = optimizer.param_groups[0].get("lr")
        self.refuse_hooks()
        self.changed()

    def _connect(self, optimizer: Any, rule: UpdateRule, before: UpdateRule | None) -> None:
        problem = optimizers.problem(optimizer, rule, self._names)
        if problem is not None:
            raise error(
                f"The state of optimizer {type(optimizer).__name__} cannot go to the device: "
                f"{problem}. Load the state that was saved with this model and this kind of "
                "optimizer, or make the optimizer anew to begin without."
            )
        stepped = optimizer is not self.in_use and optimizers.has_stepped(optimizer)
        if optimizer is not self.in_use:
            self._follow(optimizer)
        if optimizer is not self.optimizer:
            self._release(before)
            if isinstance(optimizer, HostState):
                self._take(optimizer)
        self.reread = False
        self.pending = self.pending or (stepped and bool(self._host_state()))

    def _follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice from now on that a state dictionary is loaded into it."""
        self.in_use = optimizer
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
            other._release(other.rule)
        optimizer._device = weakref.ref(self)
        self.optimizer = optimizer
        self.pending = optimizer.has_state()
        self.stale = self._session is not None  # this optimizer has not seen its state yet

    def _release(self, rule: UpdateRule | None) -> None:
        """Leave the device's state and the numbers of ``rule`` with the optimizer; let go of it."""
        if self.optimizer is None:
            return
        self.fetch(rule)
        self.optimizer._device = None
        self.optimizer, self.pending, self.reread = None, False, False

    def start(self, session: Session | None) -> None:
        """Attach to a session; None if the device is offline and nothing can be read."""
        self._session, self.stale = session, True
        self.pending = self._has_device_state() or bool(self._host_state())

    def stop(self) -> None:
        """Bring the state home, because the session ends."""
        self.fetch()
        if self._session is not None and self.in_use is not None and self.optimizer is None:
            state = self._session.read_updated_state()
            optimizers.to_host([self.in_use], self._names, state)
        self._session, self.stale = None, False

    def _has_device_state(self) -> bool:
        """Return whether the optimizer has state that was read from the device or loaded."""
        return self.optimizer is not None and self.optimizer.has_state()

    def _host_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's state on the host by slot, unless a device has newer state."""
        if self.in_use is None or self._has_device_state():
            return {}
        return optimizers.host_state([self.in_use], self._names)

    # -- device to host --------------------------------------------------------------------

    def fetch(self, rule: UpdateRule | None = None) -> None:
        """Bring the optimizer's dictionary up to date; copy only if the device has changed."""
        optimizer, session, rule = self.optimizer, self._session, rule or self.rule
        if optimizer is None or session is None or rule is None:
            return
        if self.pending and self._host_state():
            self._write()
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

    def take_loaded_values(self) -> None:
        """Use the groups of a loaded state dictionary without another ``setOptimizer``."""
        if self.reread:
            self.use(self.in_use)

    def send_loaded_state(self) -> None:
        """Send state that was loaded on the host to the device, if any."""
        if self.reread:
            self.take_loaded_values()
            rule = self.rule
            if rule is not None and rule.automatic_scaling is not None:
                # The device has moved on from the scale that the rule was set to.
                self._model.session.set_hyper("loss_scaling", rule.loss_scaling)
        if self.pending:
            self._write()

    def _write(self) -> None:
        """Send the optimizer's dictionary, or else its state on the host, to the device."""
        optimizer, session = self.optimizer, self._session
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
        if self._loaded and self.rule:  # what a loaded dictionary lacks begins again, as in torch
            matching = optimizers.initial_values(self.rule, slots) | matching
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

    # -- values -----------------------------------------------------------------------------

    def warn_of_unsent_rate(self) -> None:
        """Warn once that the host's learning rate is no longer the one that the device has.

        Called at every training step, so that it looks at the first group only.
        """
        optimizer = self.in_use
        if not self._rate_is_watched or optimizer is None:
            return
        rate = optimizer.param_groups[0].get("lr")
        if rate is self._rate or rate == self._rate:
            return
        self._rate_is_watched = False
        logger.warning(
            "The optimizer's learning rate is now %s, and the device still computes with %s: it "
            "gets new values by setOptimizer(optimizer) only. Call it after each change, such as "
            "scheduler.step().",
            rate,
            self._rate,
        )

    def refuse_hooks(self) -> None:
        """Raise poptorch.Error for a hook around the optimizer's step: it would not run."""
        optimizer = self.in_use
        refused = None if optimizer is None else gradient_hooks.refused_around_step(optimizer)
        if refused is not None:
            raise error(refused)

    def values(self) -> dict[str, float]:
        """Return the values that were set last; empty without an optimizer."""
        if self.restored is not None:
            return self.restored
        return {} if self.rule is None else self.rule.hyper()

    def restore_values(self, values: dict[str, float], *, was_set: bool) -> None:
        """Adopt the values that a restored state has put on the device.

        Args:
            values: by name.
            was_set: an optimizer was set since the state was put back; its values win.
        """
        self.restored, self.pending = values, False
        if was_set and self.rule is not None:
            self.restored = None
            self._send_changes(values, self.rule)
        self.changed()

    def _rule_of(self, optimizer: Any) -> UpdateRule:
        model = self._model
        rule = reading.to_update_rule(optimizer, self._names, warn=self.rule is None)
        rule = translate.with_automatic_scaling(rule, optimizer, model.options)
        self._watch.look(optimizer)
        # The device steps, unseen by torch's schedulers, which would warn of a missing step().
        optimizer._opt_called = True
        if self.rule is None or model.compiled is None:
            return rule
        rule = reading.replacement(self.rule, rule)
        before = self.values()
        self.restored = None
        self._send_changes(before, rule)
        return rule

    def _send_changes(self, before: dict[str, float], rule: UpdateRule) -> None:
        for name, value in rule.hyper().items():
            if bits(value) != bits(before.get(name)):
                self._model.session.set_hyper(name, value)


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
    for name, public in _VALUE_NAMES.get(rule.kind, _COMMON).items():
        yield public, float(values[name])
