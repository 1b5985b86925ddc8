"""Module classes of old SambaFlow releases: aliases of ``torch.nn``."""

from typing import Any

import torch.nn

from sambaflow.samba.nn.parameter import SambaParameter as SambaParameter


def __getattr__(name: str) -> Any:
    """Return the class of ``torch.nn`` with a given name."""
    return getattr(torch.nn, name)
