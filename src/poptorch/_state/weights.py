"""The weights of one wrapper, on the user's module and on the device."""

from collections.abc import Callable
from typing import Any

import torch

from abele.runtime import state
from abele.step import replica_groups
from abele.trace.module_state import ModuleState
from poptorch import profiling
from poptorch._compiled.wrapped import WrappedModel
from poptorch._error import error
from poptorch._optimizers.in_use import OptimizerInUse
from poptorch._state import module_weights, per_replica
from poptorch._state.host_changes import HostChanges
from poptorch._state.sources import Sources
from poptorch.enums import ConnectionType


class Weights:
    """Copies parameters and buffers one way or the other, and knows which side has newer ones.

    Args:
        model: the wrapped model.
        optimizer: what trains it.

    Attributes:
        shared: what all wrappers of the module know together.
        host_is_stale: whether the device has newer weights than the user's module.
        host_changes: warns of changes on the host that the device does not have.
    """

    def __init__(self, model: WrappedModel, optimizer: OptimizerInUse):
        self._model, self._optimizer = model, optimizer
        self.shared = module_weights.shared_by(model.user_module)
        self._sources = Sources(model.user_module)
        self.host_is_stale = False
        self.host_changes = HostChanges(model)

    def mark_changed(self) -> None:
        """Mark the device's weights as newer."""
        self.host_is_stale = self._optimizer.state.stale = True
        self.shared.version += 1

    def fetch_sources(self) -> bool:
        """Brings weights to the host that other wrappers have trained; whether there were any."""
        return self._sources.fetch()

    def refresh(self) -> None:
        """Brings an inference model in step with the wrappers that train its module or parts."""
        if self._sources.fetch():
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
        per_replica.copy_parameters_home(session, model.module, model.per_replica_params)
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
            self.host_is_stale = (
                True  # nothing has come home for certain: the next read tries again
            )
            raise
        return True

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers named by ``options.updatableNamedBuffers`` to the device.

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
        self._optimizer.state.fetch()
        self.host_is_stale = False
        session.write_buffers(ModuleState.of(self._model.module).buffers)
        self._send_parameters()

    def send_to_device_again(self) -> None:
        """Send weights to a reacquired device; replicas keep their own buffers."""
        self.host_is_stale = False
        per_replica.copy_buffers_to_replicas(self._model.session, self._model.module)
        self._send_parameters()

    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Load into the user's module, then send the weights to an attached device.

        Args:
            state_dict: tensors by name, as the module's own method takes them.
            strict: whether names must match exactly.

        Returns:
            What the module's method returns: missing and unexpected names.

        Raises:
            RuntimeError: names or shapes that do not match.
        """
        result = self._model.user_module.load_state_dict(state_dict, strict)
        if self._model.attachment is not None:
            self.copyWeightsToDevice()
        return result

    def present_state(self) -> dict[str, torch.Tensor]:
        """All tensors that the next call would start from, by ``kind/name``."""
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
        for name, value in per_replica.changed_buffers(session, model.module).items():
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
