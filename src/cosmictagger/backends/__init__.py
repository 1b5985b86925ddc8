"""The device as an option: one small object per compute mode; no other code depends on it.

CPU, GPU    `plain`   PyTorch, eager or compiled
IPU         `ipu`     poptorch: one program per step with the loss inside
RDU         `rdu`     sambaflow: sections forward, backward and update; loss on the host
"""

from torch import nn

from cosmictagger.backends._base import Backend, Proof, Settings, StepResult
from cosmictagger.config.keys import ComputeMode
from cosmictagger.errors import ConfigError

__all__ = ["Backend", "Proof", "Settings", "StepResult", "create"]


def create(network: nn.Module, loss: nn.Module, settings: Settings) -> Backend:
    """Return the backend of a compute mode.

    Args:
        network: float32, on the host.
        loss: ``(logits, label) -> scalar``.
        settings: ``settings.mode`` chooses.
    """
    if settings.mode in (ComputeMode.CPU, ComputeMode.GPU):
        from cosmictagger.backends.plain import PlainBackend

        return PlainBackend(network, loss, settings)
    if settings.mode is ComputeMode.IPU:
        from cosmictagger.backends.ipu import IpuBackend

        return IpuBackend(network, loss, settings)
    if settings.mode is ComputeMode.RDU:
        from cosmictagger.backends.rdu import RduBackend

        return RduBackend(network, loss, settings)
    raise ConfigError(
        f"run.compute_mode={settings.mode.name} was asked for; modes that exist are CPU, GPU, IPU "
        "and RDU."
    )
