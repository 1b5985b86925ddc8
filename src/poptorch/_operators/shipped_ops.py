"""Custom operators that the original ships, and programs call by name."""

import torch

from poptorch._error import error
from poptorch._operators.custom_op import register_custom_op

#: The domain of these operators.
DOMAIN = "poptorch.custom_ops"


@register_custom_op("FastGatherLastDim", DOMAIN)
def fast_gather_last_dim(inputs: list[torch.Tensor], attributes: dict) -> list[torch.Tensor]:
    """Values of the last dimension at indices, as ``torch.gather(values, -1, indices)``.

    Args:
        inputs: values ``[..., n]``, and integer indices ``[..., k]`` below n.
        attributes: ``axis``, if given, is the last one.

    Returns:
        One tensor ``[..., k]`` of the values' type.

    Raises:
        poptorch.Error: another axis, or not two inputs.
    """
    if len(inputs) != 2:
        raise error(f"FastGatherLastDim takes values and indices, found {len(inputs)} inputs.")
    values, indices = inputs
    axis = attributes.get("axis", -1)
    if axis not in (-1, values.dim() - 1):
        raise error(
            f"FastGatherLastDim gathers along the last dimension, found axis={axis}. For another "
            "one call torch.gather."
        )
    return [torch.gather(values, -1, indices.long())]
