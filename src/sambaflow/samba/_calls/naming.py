"""Names of modules and parameters, and turning a torch model into one that has them."""

from __future__ import annotations

import torch

from abele.trace.module_state import plain
from sambaflow.samba._calls.arguments import check_model
from sambaflow.samba.nn.parameter import SambaParameter


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
