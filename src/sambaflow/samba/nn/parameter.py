"""Named parameters with access to their values on the device."""

from typing import Any, Self

import torch

from abele.trace.module_state import plain
from sambaflow.samba._arguments import check_model


class SambaParameter(torch.nn.Parameter):
    """A named parameter with its values and gradient on the device.

    Attributes:
        sn_name: module names and its own, lower case, joined by double underscores.
        host_memory: a hint where it is kept; without effect.
        sn_region_name: kept, not read.
    """

    sn_name: str = ""
    host_memory: bool = False
    sn_region_name: str | None = None
    _sn_graph: Any = None  # the loaded program that has the device's copy

    @property
    def sn_data(self) -> torch.Tensor:
        """The parameter's current values: the device's, or the host's if no program is loaded."""
        graph = self._sn_graph
        return self.data if graph is None else graph.parameter(self)

    @property
    def sn_grad(self) -> torch.Tensor | None:
        """The parameter's gradient of the last run, or None."""
        graph = self._sn_graph
        return None if graph is None else graph.gradient(self)

    @property
    def has_data(self) -> bool:
        """True if the parameter has memory, not only a shape."""
        return self.device.type != "meta"

    def torch(self) -> torch.Tensor:
        """Return the current values as a host tensor; a copy if a program is loaded."""
        return self.sn_data.detach().to("cpu")

    def rdu(self) -> Self:
        """Return the parameter itself: loading a program moves parameters to the device."""
        return self


def from_torch_model_(
    model: torch.nn.Module, parent_module_prefix: str | None = None
) -> torch.nn.Module:
    """Name every module and parameter of a model, in place.

    Parameters stay the objects that they are, so that optimizers made before keep them; their class
    becomes ``SambaParameter``. Buffers stay torch tensors.

    Args:
        model: any torch module.
        parent_module_prefix: stands before every name.

    Returns:
        The model.

    Raises:
        UsageError: it is no module.
    """
    check_model(model)
    prefix = [parent_module_prefix] if parent_module_prefix else []
    for path, module in model.named_modules():
        names = [*prefix, *(path.split(".") if path else [])]
        module.sn_name = "__".join(names).lower()  # type: ignore[assignment]
        for key, value in module.named_parameters(recurse=False):
            if not isinstance(value, SambaParameter):
                _become_samba(value)
            value.sn_name = "__".join([*names, key]).lower()  # type: ignore[attr-defined]
    return model


def _become_samba(value: torch.nn.Parameter) -> None:
    if not plain(value).is_contiguous():
        # Programs are made for the default layout.
        with torch.no_grad():
            value.data = value.data.contiguous()
    value.__class__ = SambaParameter


def sn_name_of(parameter: str) -> str:
    """Return the ``sn_name`` of a parameter, given its name in ``named_parameters``."""
    return parameter.replace(".", "__").lower()
