"""Custom operators that the original ships, and programs call by name."""

from typing import Any

import torch

from abele.ops.ctc import ctc_loss
from poptorch._error import error
from poptorch._operators.custom_op import POPART, register_custom_op

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


# As the attributes of PopART's operators name them.
_REDUCTIONS = {"Mean": "mean", "Sum": "sum", "NoReduction": "none"}
# Numbers of ONNX; 0 is undefined.
_DATA_TYPES = {0: None, 1: torch.float32, 10: torch.float16}
_CTC = "reduction, blank, outDataType and zeroInfinity"
_CTC_VALUES = {"reduction": _REDUCTIONS, "outDataType": _DATA_TYPES, "zeroInfinity": (0,)}


@register_custom_op("Ctc", POPART)
def ctc(inputs: list[torch.Tensor], attributes: dict) -> list[torch.Tensor]:
    """Compute PopART's CTC loss, as ``torch.nn.functional.ctc_loss`` does.

    Args:
        inputs: log probabilities ``[time, batch, classes]``, targets ``[batch, longest]``, lengths
            of the inputs and of the targets.
        attributes: ``reduction`` is ``"Mean"``, ``"Sum"`` or ``"NoReduction"``; ``blank`` is the
            class that separates labels, 0 by default; ``outDataType`` is a number of ONNX.

    Returns:
        The loss, and the gradient of each sample's loss with respect to the log probabilities.

    Raises:
        poptorch.Error: not four inputs, or another attribute or value of one.
    """
    if len(inputs) != 4:
        raise error(
            "Ctc takes log probabilities, targets, input lengths and target lengths, found "
            f"{len(inputs)} inputs."
        )
    settings = {"reduction": "Mean", "blank": 0, "outDataType": 0, "zeroInfinity": 0} | attributes
    log_probs, targets, *lengths = inputs
    for name, value in settings.items():
        known: Any = _CTC_VALUES.get(name, range(log_probs.shape[-1]) if name == "blank" else ())
        if value not in known:
            raise error(f"Ctc knows {name} {[*known]}, found {value!r}. Its attributes are {_CTC}.")
    reduction = _REDUCTIONS[settings["reduction"]]
    others = targets.long(), lengths[0], lengths[1], settings["blank"]
    loss = ctc_loss(log_probs, *others, reduction)
    with torch.enable_grad():
        leaf = log_probs.detach().requires_grad_()
        each = ctc_loss(leaf, *others, "none")
        (gradient,) = torch.autograd.grad(each.sum(), leaf)
    dtype = _DATA_TYPES[settings["outDataType"]] or log_probs.dtype
    return [loss.to(dtype), gradient.to(dtype)]
