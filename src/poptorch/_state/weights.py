"""Weights and random state of a wrapper, copied between the user's module and the device.

As in the original the device gets weights by ``copyWeightsToDevice`` only, so that a host that
changes them otherwise is warned::

    model.load_state_dict(state); wrapper(x)   ->   one warning: the device computes with the old
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from abele._torch import without_torch_function
from abele.program import Role
from abele.runtime import state
from abele.runtime.session import Session
from abele.step import replica_groups
from abele.step.replica_groups import Grouping, GroupType
from abele.trace.module_state import ModuleState, named_tensors, plain
from abele.warn import user_line, warn_user
from poptorch import profiling
from poptorch._error import error
from poptorch._forward.structure import same_bytes
from poptorch._optim.state import OptimizerInUse
from poptorch._state import module_weights
from poptorch._state.module_weights import Shared
from poptorch._wrapper.compiled import WrappedModel
from poptorch.enums import CommGroupType, ConnectionType, VariableRetrievalMode

_STATE = {Role.PARAMETER, Role.BUFFER}
# Loops that touch weights at every step are looked at so often, then at powers of two.
_LOOKS_AT_EACH = 8


class HostChangeWarning(UserWarning):
    """The warning that the host's module has changed while the device computes with its old values.

    Differs from the original: an addition; there nothing is said.
    """


class HostChanges:
    """Warns once if the user changes weights on the host that the device does not receive.

    A training wrapper looks where the host has touched the module since the last call: the touch
    has fetched the weights, so that the host's are the device's unless they were written. An
    inference wrapper looks at the version of one tensor per call. Bits decide, so that a value that
    is written and put back is no change.
    """

    def __init__(self, model: WrappedModel):
        self._model = model
        self._trainable: dict[str, bool] = {}
        self._versions: list[tuple[str, torch.Tensor, int]] = []
        self._next = 0
        self._touches = 0
        self._line = ""
        self._written = False
        self._watching = True

    def begin(self) -> None:
        """Record ``requires_grad`` flags and weights of a newly compiled module for comparison."""
        self._trainable = {name: tensor.requires_grad for name, tensor in self._tensors()}
        self.weights_sent()

    def weights_sent(self) -> None:
        """Record that device and host have equal weights, as after a copy."""
        self._line, self._written = "", False
        if not self._model.training:
            present = [(name, plain(tensor)) for name, tensor in self._tensors()]
            self._versions = [
                (name, tensor, tensor._version)
                for name, tensor in present
                if not tensor.is_inference()
            ]

    def note_write(self, *, only_access: bool) -> None:
        """Record that the host writes a weight, or accesses its data and so may write it."""
        if not self._watching:
            return
        if not self._line or not (self._written or only_access):
            self._line = user_line()
        self._written = self._written or not only_access

    def look_after_touch(self) -> None:
        """Check a training module for changed weights if the host has accessed it."""
        line, written = self._line, self._written
        self._line, self._written = "", False
        if not self._watching:
            return
        self._touches += 1
        often = self._touches <= _LOOKS_AT_EACH or not self._touches & (self._touches - 1)
        if written or often:
            self._look(dict(self._tensors()), line)

    def look_at_one(self) -> None:
        """Check one tensor of an inference module for host writes, another at each call."""
        if not self._versions:
            return
        self._next = (self._next or len(self._versions)) - 1
        _, tensor, version = self._versions[self._next]
        if tensor._version != version and self._watching:
            changed = {
                name for name, tensor, version in self._versions if tensor._version != version
            }
            self._look({n: t for n, t in self._tensors() if n in changed}, "")
            self.weights_sent()

    def _look(self, tensors: dict[str, torch.Tensor], line: str) -> None:
        at = f" at {line}" if line else ""
        changed = [name for name, tensor in tensors.items() if self._differs(name, tensor)]
        if changed:
            self._warn(
                f"{_listed(changed)} of the host's module changed after the device got it{at}. "
                "The device computes with its own values, and the next copy to the host overwrites "
                "the host's. Call copyWeightsToDevice() after each change."
            )
        elif self._model.training:
            flags = [n for n, t in tensors.items() if t.requires_grad != self._trainable.get(n)]
            if flags:
                self._warn(
                    f"requires_grad of {_listed(flags)} changed after the model was compiled{at}. "
                    "The program trains the parameters that it was compiled with. Call destroy() "
                    "of the wrapper: the next call compiles again."
                )

    def _warn(self, message: str) -> None:
        self._watching = False
        warn_user(message, HostChangeWarning)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        with without_torch_function():
            yield from named_tensors(self._model.module)

    def _differs(self, name: str, tensor: torch.Tensor) -> bool:
        session = self._model.session
        if name in session.config.replica_groups:
            return False  # has one value per group
        if not self._is_read(name):
            return False  # of a module that poptorch.CPU calls on the host
        device = session.buffers[0].get(name)
        if device is None:
            device = session.params.get(name)
        with without_torch_function():
            return device is not None and not same_bytes(plain(tensor), device)

    def _is_read(self, name: str) -> bool:
        """Return whether a program of the model computes with a parameter or buffer."""
        return any(
            slot.name == name and slot.role in _STATE and node.users
            for program in self._model.get_compiled().captured.programs
            for slot, node in zip(program.inputs, program.placeholders(), strict=True)
        )


def _listed(names: list[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


# -- parameters that differ between groups of replicas ---------------------------------------

Entries = Mapping[str, tuple[CommGroupType, int, VariableRetrievalMode]]


def groupings(entries: Entries, module: torch.nn.Module, replicas: int) -> dict[str, Grouping]:
    """Return the replica groups of parameters, by name in ``ModuleState``.

    Entries are (group type, replicas per group, retrieval mode); the parameters in the module
    have a leading dimension for groups.

    Raises:
        poptorch.Error: an unknown name, an entry of another form, a scalar, groups that do not
            divide the replicas, or a leading dimension that is not the number of groups.
    """
    if not entries:
        return {}
    first_names = {id(value): name for name, value in reversed(_all_named(module))}
    by_name = dict(_all_named(module))
    by_first_name = {}
    for name, entry in entries.items():
        if name not in by_name:
            raise error(
                f"per_replica_params names {name!r}, the model's parameters are {sorted(by_name)}."
            )
        kind, size, mode = _checked(name, entry)
        if kind is CommGroupType.All:
            continue
        grouping = _grouping(name, kind, size, replicas)
        _check_shape(name, by_name[name], grouping, mode)
        by_first_name[first_names[id(by_name[name])]] = grouping
    return by_first_name


def _all_named(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return list(module.named_parameters(remove_duplicate=False))


def _checked(name: str, entry: Any) -> tuple[CommGroupType, int, VariableRetrievalMode]:
    try:
        kind, size, mode = entry
        return CommGroupType(kind), int(size), VariableRetrievalMode(mode)
    except (TypeError, ValueError) as problem:
        raise error(
            f"per_replica_params[{name!r}] must be (CommGroupType, shards, VariableRetrievalMode), "
            f"found {entry!r}."
        ) from problem


def _grouping(name: str, kind: CommGroupType, size: int, replicas: int) -> Grouping:
    if kind is CommGroupType.NoGrouping:
        size = 1
    if size < 1 or replicas % size:
        raise error(
            f"Parameter {name}: groups of {size} replicas were asked for, but the replication "
            f"factor is {replicas}. Choose a number of shards that divides it."
        )
    orthogonal = kind is CommGroupType.Orthogonal
    return Grouping(replicas, size, GroupType.ORTHOGONAL if orthogonal else GroupType.CONSECUTIVE)


def _check_shape(
    name: str, value: torch.Tensor, grouping: Grouping, mode: VariableRetrievalMode
) -> None:
    if value.dim() == 0:
        raise error(
            f"Scalars cannot be passed as per-replica weight tensor values: {name} has no "
            "dimension for groups. Give it one, with one entry per group of replicas."
        )
    allowed = {grouping.count}
    if mode is VariableRetrievalMode.AllReplicas:
        allowed.add(grouping.replicas)  # as a copy to the host leaves it
    if value.shape[0] not in allowed:
        raise error(
            f"Parameter {name} has shape {list(value.shape)}, but its leading dimension must be "
            f"the number of groups: {grouping.count} ({grouping.replicas} replicas in groups of "
            f"{grouping.size})."
        )


def copy_parameters_home(session: Session, module: torch.nn.Module, entries: Entries) -> None:
    """Copy the session's parameters from the device into the user's module.

    A parameter retrieved from all replicas gets a leading dimension of their number.
    """
    host = ModuleState.of(module).params
    for name, value in host.items():
        if name not in session.config.replica_groups:
            value.copy_(session.read_param(name))
    if not session.config.replica_groups:
        return
    for name, parameter in _all_named(module):
        if name not in session.config.replica_groups:
            continue
        wanted = session.read_param(name, per_replica=_from_all(entries, module, name))
        with torch.no_grad(), without_torch_function():
            if parameter.shape != wanted.shape:
                parameter.data = wanted.to(parameter.device)
            else:
                parameter.copy_(wanted)


def _from_all(entries: Entries, module: torch.nn.Module, name: str) -> bool:
    by_name = dict(_all_named(module))
    return any(
        VariableRetrievalMode(mode) is VariableRetrievalMode.AllReplicas
        for other, (_, _, mode) in entries.items()
        if by_name[other] is by_name[name]
    )


def changed_buffers(session: Session, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the host's buffers that differ from those of replica 0 on the device, by name."""
    present = session.buffers[0]
    return {
        name: value
        for name, value in ModuleState.of(module).buffers.items()
        if not same_bytes(value, present[name])
    }


# -- random state ----------------------------------------------------------------------------


def read_random_state(session: Session) -> list[int]:
    """Return the random seed and each replica's generator state as integers."""
    states = session.random_state
    if states is None:
        generator = _generators(session)
        return [generator.initial_seed(), *_integers(generator.get_rng_state())]
    numbers = [0 if session.seed is None else session.seed]
    for each in states:
        numbers += _integers(each)
    return numbers


def write_random_state(session: Session, numbers: list[int]) -> None:
    """Restore a random state from the integers of ``read_random_state``; ValueError if unfit."""
    streams = session.random_state
    states = [_generators(session).get_rng_state()] if streams is None else streams
    if not all(isinstance(number, int) and -(2**63) <= number < 2**63 for number in numbers[1:]):
        raise ValueError("rng_state must be a list of 64-bit integers, as a wrapper returned it.")
    values = torch.tensor(numbers[1:], dtype=torch.int64).view(torch.uint8)
    sizes = [state.numel() for state in states]
    if values.numel() != sum(sizes):
        raise ValueError(
            f"rng_state must have {1 + sum(sizes) // 8} numbers for {len(states)} generators, "
            f"found {len(numbers)}. Use a state that a wrapper with the same options returned."
        )
    if streams is None:
        _generators(session).set_rng_state(values)
    else:
        session.random_state = list(values.split(sizes))
        session.seed = numbers[0]


def _generators(session: Session) -> Any:
    """Return the torch module with the random generator of the session's device."""
    return torch.cuda if session.device.type == "cuda" else torch


def _integers(state: torch.Tensor) -> list[int]:
    return state.view(torch.int64).tolist()


# -- both sides ------------------------------------------------------------------------------


class Weights:
    """Copies parameters and buffers between host and device, and tracks which side is newer.

    Attributes:
        shared: state shared by all wrappers of the module.
        host_is_stale: whether the device has newer weights than the user's module.
        host_changes: warns of changes on the host that the device does not have.
    """

    def __init__(self, model: WrappedModel, optimizer: OptimizerInUse):
        self._model, self._optimizer = model, optimizer
        self.shared = module_weights.shared_by(model.user_module)
        self._generation = -1
        self._seen: dict[Shared, int] = {}  # versions of trainings that provide these weights
        self.host_is_stale = False
        self.host_changes = HostChanges(model)

    def mark_changed(self) -> None:
        """Record that the device's weights are newer than the host's."""
        self.host_is_stale = self._optimizer.stale = True
        self.shared.version += 1

    def fetch_sources(self) -> bool:
        """Copy weights to the host that other wrappers have trained since the last call.

        These are wrappers of the module, of a part of it, or of a module that contains it.

        Returns:
            Whether there were any.
        """
        if self._generation != module_weights.generation():
            self._generation = module_weights.generation()
            for child in self._model.user_module.modules():
                for shared in module_weights.shared_by(child).around:
                    self._seen.setdefault(shared, 0)  # found after it has trained, it is new
        newer = False
        for shared, version in self._seen.items():
            if shared.version != version:
                newer = True
                trainer = shared.trainer
                if trainer is not None:
                    trainer.copyWeightsToHostIfNeeded()
                self._seen[shared] = shared.version
        return newer

    def refresh(self) -> None:
        """Update an inference model from the wrappers that train its module or parts of it."""
        # At every call: most modules are not trained by a wrapper.
        alone = not self._seen and self._generation == module_weights.generation()
        if not alone and self.fetch_sources():
            self.copyWeightsToDevice()

    @profiling.traced("copyWeightsToHost")
    def copyWeightsToHost(self) -> None:
        """Copy parameters and buffers from the device into the user's module.

        Raises:
            poptorch.Error: not compiled.
            AssertionError: the connection type is Never, so nothing has run.
        """
        model, session = self._model, self._model.session
        if not session.received:  # after compiling, other processes' weights come home anyway
            self._refuse_offline("copyWeightsToHost")
        self.host_is_stale = False
        copy_parameters_home(session, model.module, model.per_replica_params)
        for name, value in ModuleState.of(model.module).buffers.items():
            value.copy_(session.buffers[0][name])

    def copy_to_host_if_stale(self, copy: Callable[[], None]) -> bool:
        """Copy weights to the host if the device has newer ones.

        Args:
            copy: copies them; the wrapper's public method, which programs may replace.

        Returns:
            Whether it did.
        """
        if not self.host_is_stale or self._model.compiled is None:
            return False
        # Cleared first: the copy itself touches the wrapped tensors.
        self.host_is_stale = False
        try:
            copy()
        except BaseException:
            self.host_is_stale = True  # nothing has come home for certain: the next read retries
            raise
        return True

    def copyNamedBuffersToDevice(self) -> None:
        """Copy buffers named by ``options.updatableNamedBuffers`` from module to device.

        Before the model is compiled this does nothing: the first call sends all buffers.
        optimum-graphcore calls it then.

        Raises:
            poptorch.Error: no buffers were named, or the model has none so named.
            AssertionError: the connection type is Never, so there is no device.
        """
        names = self._model.options._Popart.options.get("updatableNamedBuffers")
        if names and self._model.compiled is None:
            return
        session = self._model.session
        self._refuse_offline("copyNamedBuffersToDevice")
        if not names:
            raise error(
                "No named buffers marked as updatable. Name them with "
                "options.updatableNamedBuffers([...]), or call copyWeightsToDevice()."
            )
        host = ModuleState.of(self._model.module).buffers
        unknown = [name for name in names if name not in host]
        if unknown:
            raise error(
                f"options.updatableNamedBuffers names {unknown}, the model's buffers are "
                f"{sorted(host)}."
            )
        session.write_buffers({name: host[name] for name in names})

    @profiling.traced("copyWeightsToDevice")
    def copyWeightsToDevice(self) -> None:
        """Copy parameters and buffers of the user's module to the device.

        Every replica gets the same buffers.

        Raises:
            poptorch.Error: not compiled.
            AssertionError: the connection type is Never, so there is no device.
        """
        session = self._model.session
        self._refuse_offline("copyWeightsToDevice")
        self._optimizer.fetch()
        self.host_is_stale = False
        session.write_buffers(ModuleState.of(self._model.module).buffers)
        self._send_parameters()

    def send_to_device_again(self) -> None:
        """Send changed weights to a reacquired device, which continues as before its release.

        Replicas keep their own buffers unless the host has changed its own.
        """
        self.host_is_stale = False
        session = self._model.session
        session.write_buffers(changed_buffers(session, self._model.module))
        self._send_parameters()

    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Load a state dictionary into the user's module, and send it to an attached device.

        Args:
            state_dict: tensors by name, as the module's own method takes them.
            strict: whether names must match exactly.

        Returns:
            Missing and unexpected names, as the module's own method does.

        Raises:
            RuntimeError: names or shapes that do not match.
        """
        result = self._model.user_module.load_state_dict(state_dict, strict)
        if self._model.attachment is not None:
            self.copyWeightsToDevice()
        return result

    def present_state(self) -> dict[str, torch.Tensor]:
        """Return the weights, optimizer state and counters of the next call, by ``kind/name``."""
        model, session = self._model, self._model.session
        if not model.training:
            self.refresh()
        else:
            self._optimizer.send_loaded_state()
        present = state.tensors_of(session)
        if model.attachment is not None:
            return present
        # The device is taken again at the next call, and then gets what the host has changed.
        groups = session.config.replica_groups
        host = replica_groups.split(ModuleState.of(model.module).params, groups)
        for name, value in replica_groups.joined_params(host, groups).items():
            present[f"{state.PARAMS}/{name}"] = value
        for name, value in changed_buffers(session, model.module).items():
            for replica in range(len(session.buffers)):
                present[f"{state.BUFFERS}/{replica}/{name}"] = value
        return present

    def _refuse_offline(self, name: str) -> None:
        if self._model.options.connection_type == ConnectionType.Never:
            raise AssertionError(
                f"{name} needs a device, and this wrapper was compiled for an offline one "
                "(ConnectionType.Never). Choose another connection type."
            )

    def _send_parameters(self) -> None:
        self._model.session.write_params(ModuleState.of(self._model.module).params)
        self.host_changes.weights_sent()
        if self._model.training:
            self.shared.version += 1
