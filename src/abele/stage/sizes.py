"""Bytes of values on a device."""

from __future__ import annotations

import torch


def bytes_of(value: torch.Tensor, widest: int | None) -> int:
    """Bytes of a tensor on a device.

    Args:
        value: the tensor, or one of its shape and dtype without data.
        widest: bytes of the widest number that the device keeps; None where it keeps all.
    """
    element = value.element_size()
    return value.numel() * (element if widest is None else min(element, widest))
