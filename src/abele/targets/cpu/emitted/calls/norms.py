"""Layer, group and batch norms as kernel calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.targets.cpu.emitted.calls import shared
from abele.targets.cpu.emitted.calls.sixteen_bits import RoundingCall, in_16_bits
from abele.targets.translation.batch_norms import BatchNorms, operands_of
from abele.targets.translation.operations import Call, ChannelCall
from abele.targets.translation.places import Place

_FLOATS_PER_THREAD = 8192


def _statistics(
    translator: Any,
    x: Place,
    running: Sequence[Place],
    saved: Sequence[Place],
    updated: Sequence[Place],
    momentum: float,
    eps: float,
) -> None:
    pointers = (
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}"
        if running
        else ("{0}, nullptr, nullptr, {1}, {2}, nullptr, nullptr")
    )
    given = f"{_sizes(x)}, {eps!r}f, {momentum!r}f, {pointers}"
    part = f"abele_channel_statistics(begin, end, {given})"
    results = [*saved, *updated]
    translator.add(ChannelCall([x, *running], results, _all_channels(x, part), x.shape, part))


def _sums(
    translator: Any, grad: Place, x: Place, mean: Place, rstd: Place, results: Sequence[Place]
) -> None:
    form = f"abele_channel_gradients(begin, end, {_sizes(x)}, {{}}, {{{{0}}}}, {{{{1}}}}, "
    form += "{{2}}, {{3}}, {{4}}, {{5}})"
    text = _all_channels(x, form.format(x.size // x.shape[0]))
    reads, part = [grad, x, mean, rstd], form.format("{apart}")
    translator.add(ChannelCall(reads, list(results), text, x.shape, part, apart=True))


def _all_channels(x: Place, part: str) -> str:
    """Return C++ that divides channels among threads; ``part`` computes a range of them."""
    most = max(1, min(x.shape[1], x.size // _FLOATS_PER_THREAD))
    body = f"[&](Index begin, Index end) {{{{ {part}; }}}}"
    return f"abele::share<{most}>({x.shape[1]}, threads, {body})"


def _are_floats(x: Place, *weights: Place | None) -> bool:
    return x.size > 0 and all(e is None or e.dtype is torch.float32 for e in (x, *weights))


def _sizes(x: Place) -> str:
    samples, channels = x.shape[:2]
    return f"{samples}, {channels}, {x.size // (samples * channels)}"


BATCH_NORMS = BatchNorms(_are_floats, _statistics, _sums).handlers


aten = torch.ops.aten


def _workers(parts: int, floats: int) -> int:
    return max(1, min(parts, floats // _FLOATS_PER_THREAD))


def _passes(parts: int, x: Place) -> int:
    """Return the useful thread count for a norm kernel that reads its input twice."""
    return _workers(parts, 2 * x.size)


def layer_norm(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.native_layer_norm`` to a kernel call."""
    x, shape, weight, bias, eps = operands_of(translator, node)
    x = translator.contiguous(x)
    size = math.prod(shape)
    rows = x.size // max(size, 1)
    if not _are_floats(x, weight, bias) or (weight is None and bias is not None):
        return None
    if weight is not None and bias is None:  # of minus zero, which changes no sum
        bias = translator.new(weight.shape, weight.dtype)
        translator.pointwise([-0.0], "{0}".format, bias)
    x = in_16_bits(translator, x)
    results = [_fresh(translator, each) for each in node.meta["val"]]
    weights = [_dense(translator, each) for each in (weight, bias) if each is not None]
    pointers = "{1}, {2}, {3}, {4}, {5}" if weights else "nullptr, nullptr, {1}, {2}, {3}"
    given = f"{rows}, {size}, {float(eps)!r}f, {{0}}, {pointers}"
    form = _typed("layer_norm", _workers(rows, x.size), (bool(weights),), given)
    reads = [x, *weights]
    translator.add(RoundingCall(reads, results, form(reads, results), form, (0,)))
    return results


def layer_norm_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.native_layer_norm_backward`` to kernel calls."""
    grad, x, shape, mean, rstd, weight, _, mask = operands_of(translator, node)
    if not _are_floats(x, weight) or (weight is None and any(mask[1:])):
        return None
    size = math.prod(shape)
    rows = x.size // size
    grad, x, mean, rstd = (_dense(translator, each) for each in (grad, x, mean, rstd))
    kind, dtype = (weight is not None,), x.dtype
    grad, x = in_16_bits(translator, grad), in_16_bits(translator, x)
    results: list[Place | None] = [None, None, None]
    if mask[0]:
        grad_x = results[0] = translator.new(x.shape, dtype)
        reads = [grad, x, mean, rstd] + ([] if weight is None else [_dense(translator, weight)])
        pointers = "nullptr, {4}" if weight is None else "{4}, {5}"
        given = f"{rows}, {size}, {{0}}, {{1}}, {{2}}, {{3}}, {pointers}"
        form = _typed("layer_norm_backward", _workers(rows, x.size), kind, given)
        translator.add(RoundingCall(reads, [grad_x], form(reads, [grad_x]), form, (0,)))
    if weight is not None and any(mask[1:]):
        sums = [translator.new(weight.shape, dtype) for _ in (0, 1)]
        results[1:], reads = sums, [grad, x, mean, rstd]
        given = f"{rows}, {size}, {{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {{5}}"
        form = _typed("layer_norm_weights", _workers(-(-size // 16), x.size), (), given)
        translator.add(Call(reads, sums, form(reads, sums)))
    return results


def group_norm(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.native_group_norm`` to a kernel call."""
    x, weight, bias, samples, channels, pixels, groups, eps = operands_of(translator, node)
    if not _are_floats(x, weight, bias) or weight is None or bias is None:
        return None
    x = in_16_bits(translator, x)
    reads = [_dense(translator, each) for each in (x, weight, bias)]
    results = [_fresh(translator, each) for each in node.meta["val"]]
    sizes = f"{samples}, {channels}, {pixels}, {groups}"
    given = f"{sizes}, {float(eps)!r}f, {{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {{5}}"
    form = _typed("group_norm", _passes(samples * groups, x), (), given)
    translator.add(RoundingCall(reads, results, form(reads, results), form, (0,)))
    return results


def group_norm_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.native_group_norm_backward`` to kernel calls."""
    grad, x, mean, rstd, weight, samples, channels, pixels, groups, _ = operands_of(
        translator, node
    )
    if not _are_floats(x, weight) or weight is None:
        return None
    grad_x = translator.new(x.shape, x.dtype)
    sums = translator.new((samples, channels, 2), x.dtype)
    grad, x = in_16_bits(translator, grad), in_16_bits(translator, x)
    reads = [_dense(translator, each) for each in (grad, x, mean, rstd, weight)]
    mask = _mask(node)
    sizes = f"{samples}, {channels}, {pixels}, {groups}"
    given = f"{sizes}, {{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {{5}}, {{6}}"
    kind = (mask is not None,)
    form = _typed("group_norm_backward", _passes(samples * groups, x), kind, given)
    results, also = [grad_x, sums], (mask,) if mask else ()
    translator.add(RoundingCall(reads, results, form(reads, results), form, (0,), also=also))
    if mask is not None:
        translator.places[mask] = grad_x
    weights = [translator.new((channels,), grad_x.dtype) for _ in (0, 1)]
    text = f"abele::group_norm_weights({samples}, {channels}, {{0}}, {{1}}, {{2}})"
    translator.add(Call([sums], weights, text))
    return [grad_x, *weights]


def _typed(
    name: str, most: int, kind: tuple[bool, ...], arguments: str
) -> Callable[[Sequence[Place], Sequence[Place]], str]:
    """Return a function of a call's tensors that returns its text, as ``shared.call`` does."""

    def form(reads: Sequence[Place], writes: Sequence[Place]) -> str:
        of_floats = all(each.dtype is torch.float32 for each in (*reads, *writes))
        return shared.call(name, most, kind, arguments, of_floats=of_floats)

    return form


def _mask(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the ReLU backward that alone reads a norm's input gradient, or None."""
    gradients = [user for user in node.users if user.args[1] == 0]
    users = [user for each in gradients for user in each.users]
    if len(users) != 1 or users[0].target is not aten.threshold_backward.default:
        return None
    return users[0] if list(users[0].args) == [gradients[0], node.args[1], 0] else None


def _dense(translator: Any, place: Place) -> Place:
    return translator.contiguous(place)


def _fresh(translator: Any, value: torch.Tensor) -> Place:
    return translator.new(tuple(value.shape), value.dtype)


HANDLERS = {
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
}
