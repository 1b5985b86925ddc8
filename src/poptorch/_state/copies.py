"""Copies of weights between the user's module and the device, one way or the other."""

from typing import Any

import torch

from abele.runtime.session import Session
from abele.trace.module_state import ModuleState
from poptorch._error import error
from poptorch._optimizers.device_state import DeviceState
from poptorch._state import per_replica
from poptorch._state.locked import locked
from poptorch._state.module_weights import Shared
from poptorch.enums import ConnectionType
from poptorch.options import Options


class WeightCopies:
    """The members of an executor that move weights and buffers."""

    per_replica_params: dict[str, tuple]
    _compiled: Any
    _get_compiled: Any
    _host_is_stale: bool
    _module: torch.nn.Module
    _optimizer_state: DeviceState
    _options: Options
    _shared: Shared
    _training: bool
    _user_model: torch.nn.Module
    isAttachedToDevice: Any

    @locked
    def copyWeightsToHost(self) -> None:
        """Copies parameters and buffers from the device into the user's module.

        Raises:
            poptorch.Error: not compiled.
            AssertionError: the connection type is Never, so nothing has run.
        """
        session = self._get_compiled().session
        if not session.received:  # after compiling, other processes' weights come home anyway
            self._refuse_offline("copyWeightsToHost")
        self._host_is_stale = False
        per_replica.copy_parameters_home(session, self._module, self.per_replica_params)
        for name, value in ModuleState.of(self._module).buffers.items():
            value.copy_(session.buffers[0][name])

    @locked
    def copyNamedBuffersToDevice(self) -> None:
        """Copies the buffers named by ``options.updatableNamedBuffers`` to the device.

        Raises:
            poptorch.Error: not compiled, no buffers were named, or the model has none so named.
            AssertionError: the connection type is Never, so there is no device.
        """
        session = self._get_compiled().session
        self._refuse_offline("copyNamedBuffersToDevice")
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise error(
                "No named buffers marked as updatable. Name them with "
                "options.updatableNamedBuffers([...]), or call copyWeightsToDevice()."
            )
        host = ModuleState.of(self._module).buffers
        unknown = [name for name in names if name not in host]
        if unknown:
            raise error(
                f"options.updatableNamedBuffers names {unknown}, the model's buffers are "
                f"{sorted(host)}."
            )
        session.write_buffers({name: host[name] for name in names})

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies weights to the host if the device has newer ones.

        Returns:
            Whether it did; False if nothing is compiled.
        """
        if not self._host_is_stale or self._compiled is None:
            return False
        return self._fetch_newer()

    @locked
    def _fetch_newer(self) -> bool:
        if not self._host_is_stale:  # another thread has done it meanwhile
            return False
        # Cleared first: the copy itself touches the wrapped tensors.
        self._host_is_stale = False
        try:
            self.copyWeightsToHost()
        except BaseException:
            self._host_is_stale = (
                True  # nothing has come home for certain: the next read tries again
            )
            raise
        return True

    @locked
    def copyWeightsToDevice(self) -> None:
        """Copies parameters and buffers of the user's module to the device, as they are.

        Every replica gets the same buffers.

        Raises:
            poptorch.Error: not compiled.
            AssertionError: the connection type is Never, so there is no device.
        """
        session = self._get_compiled().session
        self._refuse_offline("copyWeightsToDevice")
        self._optimizer_state.fetch()
        self._host_is_stale = False
        session.write_buffers(ModuleState.of(self._module).buffers)
        self._send_parameters(session)

    def _refuse_offline(self, name: str) -> None:
        if self._options.connection_type == ConnectionType.Never:
            raise AssertionError(
                f"{name} needs a device, and this wrapper was compiled for an offline one "
                "(ConnectionType.Never). Choose another connection type."
            )

    def _send_parameters(self, session: Session) -> None:
        session.write_params(ModuleState.of(self._module).params)
        if self._training:
            self._shared.version += 1

    @locked
    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Loads into the user's module, then sends the weights to the device if attached.

        Args:
            state_dict: tensors by name, as the module's own method takes them.
            strict: whether names must match exactly.

        Returns:
            What the module's method returns: missing and unexpected names.

        Raises:
            RuntimeError: names or shapes that do not match.
        """
        result = self._user_model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result
