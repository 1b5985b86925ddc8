"""Backends of the network, one per compute mode (CPU, GPU, IPU, RDU).

CPU, GPU    `plain`   PyTorch, eager or compiled
IPU         `ipu`     poptorch: one program per step with the loss inside
RDU         `rdu`     sambaflow: sections forward, backward and update; loss on the host
"""

import importlib

from torch import nn

from cosmictagger.backends._base import Backend, Proof, Settings, StepResult
from cosmictagger.config.keys import ComputeMode
from cosmictagger.measures import Loss

__all__ = ["Backend", "Proof", "Settings", "StepResult", "create"]

_CLASSES = {
    ComputeMode.CPU: ("plain", "PlainBackend"),
    ComputeMode.GPU: ("plain", "PlainBackend"),
    ComputeMode.IPU: ("ipu", "IpuBackend"),
    ComputeMode.RDU: ("rdu", "RduBackend"),
}


def create(network: nn.Module, loss: Loss, settings: Settings) -> Backend:
    """Create the backend of a compute mode.

    Args:
        network: float32, on the host.
        loss: of its outputs.
        settings: ``settings.mode`` chooses.
    """
    module, name = _CLASSES[settings.mode]
    kind = getattr(importlib.import_module(f"cosmictagger.backends.{module}"), name)
    return kind(network, loss, settings)
