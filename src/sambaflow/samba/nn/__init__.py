"""Module classes of old releases: those of ``torch.nn``."""

from typing import Any

import torch.nn
from torch.nn import *  # noqa: F403
from torch.nn import functional as functional

from sambaflow.samba.nn.parameter import SambaParameter as SambaParameter


def __getattr__(name: str) -> Any:
    return getattr(torch.nn, name)
