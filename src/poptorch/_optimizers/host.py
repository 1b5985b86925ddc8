"""The host's copy of an optimizer's device state: read, loaded, copied and pickled.

``DeviceState`` of ``device_state`` is its counterpart. The optimizer knows it only weakly, so
that optimizers can be copied and kept without keeping a device.
"""

import weakref
from typing import Any, cast

import torch


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
        """Return the ``DeviceState`` of the live wrapper that runs this optimizer."""
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
        values = {name: getattr(self, name) for name in extras(self)}
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


def extras(optimizer: Any) -> list[str]:
    """Return names of the attributes that poptorch.optim adds to torch's."""
    return [
        name
        for name, value in vars(optimizer).items()
        if not name.startswith("_") and not callable(value)
    ]
