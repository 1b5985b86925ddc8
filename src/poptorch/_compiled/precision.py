"""Activations and weights of different types: who follows whom.

Programs halve a model but feed it floats, or the other way round. Plain PyTorch refuses that in
most layers; a device of this programming model casts. Three rules, applied while forward is traced:

1. Weights follow activations in dense, convolution, attention and PReLU layers: the result has the
   type of the input.
2. Normalisations compute with float32 parameters as they are; half ones are widened to the input.
3. Products of two activations and losses promote like element-wise operations: half with float
   gives float.

Recurrent layers are not among them: torch checks their types before anything can be cast.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.warn import warn_user

_FOLLOWING = frozenset(
    {
        F.linear,
        F.bilinear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
        F.multi_head_attention_forward,
        F.prelu,
        torch.prelu,
    }
)
_NORMALISING = frozenset({F.layer_norm, F.group_norm, F.rms_norm})
# Input, running mean, running variance, weight, bias: the second and third are written.
_WITH_STATISTICS = frozenset({F.batch_norm, F.instance_norm})
_PROMOTING = frozenset(
    {
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.mm,
        torch.Tensor.mm,
        torch.bmm,
        torch.Tensor.bmm,
        torch.mv,
        torch.Tensor.mv,
        torch.dot,
        torch.Tensor.dot,
        torch.addmm,
        torch.Tensor.addmm,
        torch.baddbmm,
        torch.Tensor.baddbmm,
        torch.einsum,
        F.scaled_dot_product_attention,
        F.binary_cross_entropy,
        F.huber_loss,
        F.smooth_l1_loss,
        F.mse_loss,
        F.l1_loss,
    }
)


_CONCERNED = _FOLLOWING | _NORMALISING | _WITH_STATISTICS | _PROMOTING


class WeightsFollowActivations(TorchFunctionMode):
    """While open, the three rules above hold."""

    def __init__(self):
        super().__init__()
        self._warned = False

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        """Call ``func``, with operands cast where a rule applies."""
        kwargs = kwargs or {}
        if func not in _CONCERNED or _are_alike((args, kwargs)):
            return func(*args, **kwargs)
        if func in _FOLLOWING:
            like = args[0] if args else kwargs["input"]
            self._warn_of_wide_inputs(like, (args, kwargs))
            args, kwargs = _cast_all((args, kwargs), like.dtype)
        elif func in _NORMALISING:
            like = args[0] if args else kwargs["input"]
            args, kwargs = _cast_all((args, kwargs), _widest((args, kwargs)), but=like)
        elif func in _WITH_STATISTICS:
            return _with_statistics(func, *args, **kwargs)
        else:
            args, kwargs = _cast_all((args, kwargs), _widest((args, kwargs)))
        return func(*args, **kwargs)

    def _warn_of_wide_inputs(self, like: torch.Tensor, values: Any) -> None:
        """Says once that weights of bfloat16 compute in float32, which plain PyTorch refuses."""
        with _torch.without_torch_function_modes():
            kinds = {value.dtype for value in _floating(values)}
            is_wide = like.dtype is torch.float32 and torch.bfloat16 in kinds
        if is_wide and not self._warned:
            self._warned = True
            warn_user(
                "A layer with bfloat16 weights gets a float32 activation and computes in float32: "
                "weights follow activations, as in PopTorch. To compute in bfloat16, pass "
                "x.bfloat16().",
                UserWarning,
            )


def _with_statistics(
    func: Callable,
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Compute a normalisation whose statistics keep their dtype."""
    statistics = (running_mean, running_var)
    others = (statistics, args, kwargs)
    kind = _widest((input, others))
    if all(value.dtype == kind for value in _floating(others)):
        return func(input, *statistics, *args, **kwargs)
    wide = _cast_all(statistics, kind)
    args, kwargs = _cast_all((args, kwargs), kind)
    result = func(input, *wide, *args, **kwargs)
    names = ("training", "use_input_stats")  # after weight and bias, where it is not named
    flags = [kwargs[name] for name in names if name in kwargs] or [*args[2:3]]
    for value, new in zip(statistics, wide, strict=True):
        if value is not None and new is not value and all(flags):
            value.copy_(new)
    return result


def _are_alike(values: Any) -> bool:
    """Return whether all floating tensors have one dtype, so that nothing is cast."""
    # Each property that the modes below see costs as much as an operator that is traced again.
    with _torch.without_torch_function_modes():
        return len({value.dtype for value in _floating(values)}) < 2


def _floating(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, dict):
        yield from _floating(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _floating(value)


def _widest(values: Any) -> torch.dtype | None:
    """Return the dtype to which all floating tensors promote; None without any."""
    widest = None
    for value in _floating(values):
        kind = value.dtype
        # Asked only where they differ: each call of torch is traced.
        widest = kind if widest in (None, kind) else torch.promote_types(widest, kind)
    return widest


def _cast_all(values: Any, kind: torch.dtype | None, but: torch.Tensor | None = None) -> Any:
    """``values`` with every floating tensor in type ``kind``, except ``but``."""
    if isinstance(values, torch.Tensor):
        wanted = kind is not None and kind.is_floating_point and values.is_floating_point()
        return values.to(kind) if wanted and values is not but else values
    if isinstance(values, dict):
        return {name: _cast_all(value, kind, but) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(_cast_all(value, kind, but) for value in values)
    return values
