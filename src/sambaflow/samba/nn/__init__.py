"""Module classes of old releases: those of ``torch.nn``."""

from typing import Any

import torch.nn

from sambaflow.samba.nn.parameter import SambaParameter as SambaParameter


def __getattr__(name: str) -> Any:
    """Return the attribute of ``torch.nn`` of this name."""
    return getattr(torch.nn, name)
