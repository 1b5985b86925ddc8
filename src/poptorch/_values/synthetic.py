"""Synthetic inputs on the device, for measuring without the cost of moving data."""

from collections.abc import Sequence

import torch

from poptorch._error import error
from poptorch.options import Options

_OFF, _ZEROS, _NORMAL, _UNIFORM = range(4)


def synthetic_inputs(
    options: Options, like: Sequence[torch.Tensor], device: torch.device
) -> list[torch.Tensor] | None:
    """Return tensors to use instead of a caller's, or None if the caller's are to be used.

    Args:
        options: ``syntheticDataMode`` 0 off, 1 zeros, 2 random normal, 3 random uniform in 0..1.
        like: the tensors of a whole call; shapes and dtypes are taken. Integers become zeros,
            which are valid as classes and indices.
        device: where they are made.

    Raises:
        poptorch.Error: the mode does not exist.
    """
    mode = int(options._Popart.options.get("syntheticDataMode", _OFF))
    if mode == _OFF:
        return None
    if mode not in (_ZEROS, _NORMAL, _UNIFORM):
        raise error(
            f"syntheticDataMode is {mode}; it must be 0 (off), 1 (zeros), 2 (random normal) or "
            "3 (random uniform)."
        )
    # A generator of its own: what the model draws must not depend on this option.
    generator = torch.Generator(device).manual_seed(0)
    tensors = []
    for tensor in like:
        fresh = torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        if mode != _ZEROS and tensor.dtype.is_floating_point:
            fill = fresh.normal_ if mode == _NORMAL else fresh.uniform_
            fill(generator=generator)
        tensors.append(fresh)
    return tensors
