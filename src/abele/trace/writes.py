"""Rewriting of ``out`` arguments, and refusal of writes to elements that share memory.

torch.mm(x, y, out=o)   ->   r = mm(x, y); o.copy_(r)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch import OpOverload, schema_of
from abele.containers import is_sequence
from abele.errors import CaptureError
from abele.warn import user_line

aten = torch.ops.aten

Call = Callable[[OpOverload, Sequence[Any], dict[str, Any]], Any]


def has_out(function: OpOverload) -> bool:
    """Return whether an operator writes its results to ``out`` arguments."""
    schema = schema_of(function)
    return schema.is_mutable and any(each.is_out for each in schema.arguments)


def write_results(
    function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call
) -> Any:
    """Compute an operator's results and copy them into its ``out`` arguments.

    Args:
        function: the operator; ``has_out`` of it.
        args: its arguments.
        kwargs: further ones, those for results among them.
        call: traces an operator.

    Returns:
        The arguments that were written to.

    Raises:
        CaptureError: no operator returns the result, or it does not fit.
    """
    names = [each.name for each in schema_of(function).arguments if each.is_out]
    outs = [kwargs[name] for name in names]
    others = {name: value for name, value in kwargs.items() if name not in names}
    target = returning(function)
    if target is None or any(map(is_sequence, outs)):
        raise CaptureError(
            f"{_name(function)} with out= is not supported, at {user_line()}. Assign its result "
            "instead, or copy it: out.copy_(result)."
        )
    computed = call(target, args, others)
    results = list(computed) if is_sequence(computed) else [computed]
    for out, result in zip(outs, results, strict=True):
        if _layout(out) != _layout(result):
            raise CaptureError(
                f"{_name(function)} with out= has a result of {_layout(result)} and was given a "
                f"tensor of {_layout(out)}, at {user_line()}. Assign the result instead, or copy "
                "it: out.copy_(result)."
            )
        call(aten.copy_.default, (out, result), {})
    return outs[0] if len(outs) == 1 else tuple(outs)


@functools.cache
def returning(function: OpOverload) -> OpOverload | None:
    """Return the overload without ``out`` arguments that returns the same results."""
    packet = getattr(
        getattr(torch.ops, function.namespace), schema_of(function).name.split("::")[1]
    )
    inputs = [_text(each) for each in schema_of(function).arguments if not each.is_out]
    others = [other for other in _torch.overloads(packet) if not schema_of(other).is_mutable]
    for other in others:
        if [_text(each) for each in schema_of(other).arguments] == inputs:
            return other
    return None


def _layout(tensor: torch.Tensor) -> str:
    return f"shape {list(tensor.shape)} and {tensor.dtype}"


def _text(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


def _name(function: OpOverload) -> str:
    return _torch.operator_name(function).split(".")[0].replace("aten::", "torch.")


# -- elements that share memory ----------------------------------------------------------------

# Functionalization would treat each of the shared elements as separate.
_WRITES_EACH = {
    *(aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default),
    *(aten.masked_fill_.Scalar, aten.masked_fill_.Tensor, aten.threshold_.default),
    *(aten.tril_.default, aten.triu_.default),
}


def refuse_shared(function: OpOverload, tensor: torch.Tensor) -> None:
    """Raise CaptureError for a write to an expanded tensor, whose elements share memory."""
    if torch.Tag.pointwise not in function.tags and function not in _WRITES_EACH:
        return  # what others write first may be a list
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    if any(size > 1 and stride == 0 for size, stride in strides):
        raise CaptureError(refusal(f", at {user_line()}"))


def refusal(place: str) -> str:
    """Return the error message for a write to elements that share memory.

    Args:
        place: the user's line, after a comma; empty if it is unknown.
    """
    return (
        f"forward writes into elements that share their memory{place}, as those of expand and "
        "unfold do; which value remains is not defined. Write into a clone."
    )
