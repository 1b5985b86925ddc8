"""The device as an option: one small object per compute mode; no other code depends on it.

CPU, GPU    `plain`   PyTorch, eager or compiled
IPU         `ipu`     poptorch: one program per step with the loss inside
RDU         `rdu`     sambaflow: sections forward, backward and update; loss on the host
"""

import importlib

from torch import nn

from cosmictagger.backends._base import Backend, Proof, Settings, StepResult
from cosmictagger.config.keys import ComputeMode
from cosmictagger.errors import ConfigError

__all__ = ["Backend", "Proof", "Settings", "StepResult", "create"]

_CLASSES = {
    ComputeMode.CPU: ("plain", "PlainBackend"),
    ComputeMode.GPU: ("plain", "PlainBackend"),
    ComputeMode.IPU: ("ipu", "IpuBackend"),
    ComputeMode.RDU: ("rdu", "RduBackend"),
}


def create(network: nn.Module, loss: nn.Module, settings: Settings) -> Backend:
    """Return the backend of a compute mode.

    Args:
        network: float32, on the host.
        loss: ``(logits, label) -> scalar``.
        settings: ``settings.mode`` chooses.
    """
    place = _CLASSES.get(settings.mode)
    if place is None:
        raise ConfigError(
            f"run.compute_mode={settings.mode.name} was asked for; modes that exist are CPU, GPU, "
            "IPU and RDU."
        )
    module, name = place
    kind = getattr(importlib.import_module(f"cosmictagger.backends.{module}"), name)
    return kind(network, loss, settings)
