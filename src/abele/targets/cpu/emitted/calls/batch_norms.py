"""Batch norms: sums of each channel are calls, the rest is elementwise and joins other loops."""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.translation.moves.arguments import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten

_FLOATS_PER_THREAD = 8192


def training(translator: Any, node: torch.fx.Node) -> bool:
    """``aten._native_batch_norm_legit_functional`` and the one without running statistics."""
    x, weight, bias, *given = (_place(translator, each) for each in arguments(node))
    running: list[Place | None] = given[:2] if len(given) == 5 else []
    train, momentum, eps = given[-3:]
    if not _usable(x) or any(each is None for each in running):
        return False
    if not train:
        return bool(running) and _by_running(translator, node, x, weight, bias, *running, eps)
    x = translator.contiguous(x)
    channels = (x.shape[1],)
    saved = [translator.new(channels, x.dtype) for _ in (0, 1)]
    updated = [translator.new(channels, x.dtype) for _ in running]
    pointers = (
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}"
        if running
        else ("{0}, nullptr, nullptr, {1}, {2}, nullptr, nullptr")
    )
    text = (
        f"abele::batch_statistics<{_workers(x)}>({_sizes(x)}, {float(eps)!r}f, "
        f"{float(momentum)!r}f, {pointers}, threads)"
    )
    reads = [x, *(translator.contiguous(each) for each in running)]
    translator.add(Call(reads, [*saved, *updated], text))
    result = _normalised(translator, x, *saved, weight, bias)
    translator.places[node] = [result, *saved, *updated]
    return True


def trained(translator: Any, node: torch.fx.Node) -> bool:
    """``aten._native_batch_norm_legit_no_training``."""
    x, weight, bias, mean, var, _, eps = (_place(translator, each) for each in arguments(node))
    return _usable(x) and _by_running(translator, node, x, weight, bias, mean, var, eps)


def backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.native_batch_norm_backward``."""
    grad, x, weight, mean, var, *saved, train, eps, mask = (
        _place(translator, each) for each in arguments(node)
    )
    if not _usable(x) or (not train and (mean is None or var is None)):
        return False
    grad, x = translator.contiguous(grad), translator.contiguous(x)
    mean, rstd = saved if train else (mean, _rstd(translator, var, eps))
    sums = [translator.new((x.shape[1],), x.dtype) for _ in (0, 1)]
    if train or any(mask[1:]):
        text = (
            f"abele::batch_norm_sums<{_workers(x)}>({_sizes(x)}, "
            "{0}, {1}, {2}, {3}, {4}, {5}, threads)"
        )
        translator.add(Call([grad, x, mean, rstd], sums, text))
    result = None
    if mask[0]:
        operands = [grad, *(_along(each, x) for each in (rstd, *_given(weight)))]
        text = "({0} * ({1} * {2}))" if weight is not None else "({0} * {1})"
        if train:
            scale = operands[1:]
            grad_weight, grad_bias, mean = (_along(each, x) for each in (*sums, mean))
            share = 1 / (x.size // x.shape[1])
            operands = [grad, x, mean, scale[0], grad_bias, grad_weight, share, *scale[1:]]
            factor = "({3} * {7})" if weight is not None else "{3}"
            text = (
                f"(({{0}} - {{4}} * {{6}} - ({{1}} - {{2}}) * ({{3}} * {{5}} * {{6}})) * {factor})"
            )
        result = translator.new(x.shape, x.dtype)
        translator.pointwise(operands, text.format, result)
    wanted = zip(sums, mask[1:], strict=True)
    translator.places[node] = [result, *(place if each else None for place, each in wanted)]
    return True


def _by_running(
    translator: Any,
    node: torch.fx.Node,
    *given: Any,
) -> bool:
    x, weight, bias, mean, var, eps = given
    result = _normalised(translator, x, mean, _rstd(translator, var, eps), weight, bias)
    empty = [translator.new((0,), x.dtype) for _ in (0, 1)]
    updated = [mean, var] if len(node.meta["val"]) == 5 else []
    translator.places[node] = [result, *empty, *updated]
    return True


def _rstd(translator: Any, var: Place, eps: float) -> Place:
    result = translator.new(var.shape, var.dtype)
    translator.pointwise([var, eps], "(1 / std::sqrt({0} + {1}))".format, result)
    return result


def _normalised(translator: Any, x: Place, *given: Place | None) -> Place:
    mean, rstd, weight, bias = (None if each is None else _along(each, x) for each in given)
    result = translator.new(x.shape, x.dtype, x.stride)
    operands, text = [x, mean, rstd], "({0} - {1}) * {2}"
    for each, form in ((weight, "({0} - {1}) * ({2} * {3})"), (bias, "{text} + {{{count}}}")):
        if each is not None:
            text = form if form[0] == "(" else form.format(text=text, count=len(operands))
            operands.append(each)
    translator.pointwise(operands, f"({text})".format, result)
    return result


def _along(values: Place, x: Place) -> Place:
    """A number per channel, broadcast over samples and pixels."""
    shape = (x.shape[1], *(1 for _ in x.shape[2:]))
    stride = (values.stride[0], *(1 for _ in x.shape[2:]))
    return Place(values.buffer, shape, stride, values.offset)


def _given(value: Place | None) -> list[Place]:
    return [] if value is None else [value]


def _usable(x: Place) -> bool:
    return x.dtype is torch.float32 and x.size > 0


def _sizes(x: Place) -> str:
    samples, channels = x.shape[:2]
    return f"{samples}, {channels}, {x.size // (samples * channels)}"


def _workers(x: Place) -> int:
    return max(1, min(x.shape[1], x.size // _FLOATS_PER_THREAD))


def _place(translator: Any, value: Any) -> Any:
    return translator.places[value] if isinstance(value, torch.fx.Node) else value


HANDLERS = {
    aten._native_batch_norm_legit_functional.default: training,
    aten._native_batch_norm_legit.no_stats: training,
    aten._native_batch_norm_legit_no_training.default: trained,
    aten.native_batch_norm_backward.default: backward,
}
