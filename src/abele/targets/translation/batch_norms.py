"""Translation of batch norms: device-specific channel sums, elementwise loops for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.targets.translation.movement import arguments
from abele.targets.translation.places import Place
from abele.targets.translation.translate import Handler

aten = torch.ops.aten


class BatchNorms:
    """Handlers that translate batch norms, given a device's channel reductions.

    Args:
        usable: returns whether the device's reductions support an input.
        statistics: adds the computation of mean, 1 / standard deviation and running statistics of
            each channel. Arguments: translator, input, running statistics, views of the two
            results, views of the new running statistics, momentum and eps.
        sums: adds the channel sums of the gradient, times the normalized input and alone.
            Arguments: translator, gradient, input, mean, 1 / standard deviation, two result views.
    """

    def __init__(
        self,
        usable: Callable[[Place], bool],
        statistics: Callable[
            [Any, Place, Sequence[Place], Sequence[Place], Sequence[Place], float, float], None
        ],
        sums: Callable[[Any, Place, Place, Place, Place, Sequence[Place]], None],
    ):
        self._usable, self._statistics, self._sums = usable, statistics, sums

    @property
    def handlers(self) -> dict[Any, Handler]:
        """Translation handlers of all batch norm operators."""
        return {
            aten._native_batch_norm_legit_functional.default: self.training,
            aten._native_batch_norm_legit.no_stats: self.training,
            aten._native_batch_norm_legit_no_training.default: self.trained,
            aten.native_batch_norm_backward.default: self.backward,
        }

    def training(self, translator: Any, node: torch.fx.Node) -> Any:
        """Translate ``aten._native_batch_norm_legit_functional`` and ``.no_stats``."""
        x, weight, bias, *given = operands_of(translator, node)
        running: list[Any] = given[:2] if len(given) == 5 else []
        train, momentum, eps = given[-3:]
        if not self._usable(x) or any(each is None for each in running):
            return None
        if not train:
            given = x, weight, bias, *running, eps
            return _by_running(translator, node, *given) if running else None
        x = translator.contiguous(x)
        channels = (x.shape[1],)
        saved = [translator.new(channels, x.dtype) for _ in (0, 1)]
        updated = [translator.new(channels, x.dtype) for _ in running]
        running = [translator.contiguous(each) for each in running]
        self._statistics(translator, x, running, saved, updated, float(momentum), float(eps))
        result = _normalised(translator, x, *saved, weight, bias)
        return [result, *saved, *updated]

    def trained(self, translator: Any, node: torch.fx.Node) -> Any:
        """Translate ``aten._native_batch_norm_legit_no_training``."""
        x, weight, bias, mean, var, _, eps = operands_of(translator, node)
        if not self._usable(x):
            return None
        return _by_running(translator, node, x, weight, bias, mean, var, eps)

    def backward(self, translator: Any, node: torch.fx.Node) -> Any:
        """Translate ``aten.native_batch_norm_backward``."""
        grad, x, weight, mean, var, *saved, train, eps, mask = operands_of(translator, node)
        if not self._usable(x) or (not train and (mean is None or var is None)):
            return None
        grad, x = translator.contiguous(grad), translator.contiguous(x)
        mean, rstd = saved if train else (mean, _rstd(translator, var, eps))
        sums = [translator.new((x.shape[1],), x.dtype) for _ in (0, 1)]
        if train or any(mask[1:]):
            self._sums(translator, grad, x, mean, rstd, sums)
        result = (
            _gradient(translator, grad, x, weight, mean, rstd, sums, train) if mask[0] else None
        )
        wanted = zip(sums, mask[1:], strict=True)
        return [result, *(place if each else None for place, each in wanted)]


def _gradient(
    translator: Any,
    grad: Place,
    x: Place,
    weight: Place | None,
    mean: Place,
    rstd: Place,
    sums: Sequence[Place],
    train: bool,
) -> Place:
    """Add the elementwise operation of a batch norm's input gradient."""
    operands: list[Any] = [grad, *(_along(each, x) for each in (rstd, weight) if each is not None)]
    text = "({0} * ({1} * {2}))" if weight is not None else "({0} * {1})"
    if train:
        scale = operands[1:]
        grad_weight, grad_bias, mean = (_along(each, x) for each in (*sums, mean))
        share = 1 / (x.size // x.shape[1])
        operands = [grad, x, mean, scale[0], grad_bias, grad_weight, share, *scale[1:]]
        factor = "({3} * {7})" if weight is not None else "{3}"
        text = f"(({{0}} - {{4}} * {{6}} - ({{1}} - {{2}}) * ({{3}} * {{5}} * {{6}})) * {factor})"
    result = translator.new(x.shape, x.dtype)
    translator.pointwise(operands, text.format, result)
    return result


def _by_running(
    translator: Any,
    node: torch.fx.Node,
    *given: Any,
) -> Any:
    x, weight, bias, mean, var, eps = given
    result = _normalised(translator, x, mean, _rstd(translator, var, eps), weight, bias)
    empty = [translator.new((0,), x.dtype) for _ in (0, 1)]
    updated = [mean, var] if len(node.meta["val"]) == 5 else []
    return [result, *empty, *updated]


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
    """Broadcast a per-channel vector over samples and pixels."""
    shape = (x.shape[1], *(1 for _ in x.shape[2:]))
    stride = (values.stride[0], *(1 for _ in x.shape[2:]))
    return Place(values.buffer, shape, stride, values.offset)


def operands_of(translator: Any, node: torch.fx.Node) -> list[Any]:
    """Return the positional arguments of a node, with the buffer views of those that are nodes."""
    places, given = translator.places, arguments(node)
    return [places[each] if isinstance(each, torch.fx.Node) else each for each in given]
