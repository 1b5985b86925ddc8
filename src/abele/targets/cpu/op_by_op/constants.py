"""Convolutions whose weights are constants: folded and packed once, until they change.

Winograd's kernel reads transformed weights, oneDNN weights in its own order. oneDNN's ReLU and
clamps turn NaN into numbers, so these run behind it, in place.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele import _torch
from abele.kernels import on_tensors
from abele.kernels.convolutions import (
    WINOGRAD,
    Convolution,
    convolution_of,
    kernel_for,
    reads_planes,
    winograd_points,
)
from abele.kernels.on_tensors import channels_last, dense
from abele.locks import Lock
from abele.ops import constant_convolution
from abele.ops.constant_convolution import ACTIVATIONS, folded
from abele.targets.base import Run
from abele.targets.cpu.changes import Changes, Checksum
from abele.targets.cpu.op_by_op.kernels import OwnKernel

Tensor = torch.Tensor
_Node = torch.fx.Node
#: A convolution of (x, added) with weights that it holds.
_Held = Callable[[Tensor, Tensor | None], Tensor]
#: Slots of weight, bias (or None) and norm of a convolution, and the norm's eps.
Slots = tuple[int, int | None, list[int], float]

# Activations that oneDNN computes of NaN as torch does.
_FUSED = ("none", "leaky_relu", "swish", "hardswish")


class ConstantConvolution:
    """A convolution of tensors that holds its weights between calls, or packs them in each.

    Args:
        node: of ``ops.constant_convolution``.
        library: the loaded kernel library.
        overwrite: the result is written over what is added.
    """

    def __init__(self, node: _Node, library: ctypes.CDLL, overwrite: bool):
        arguments: tuple[Any, ...] = node.args
        *self._places, self._activation, self._scalars = arguments[6:]
        self._library, self._overwrite = library, overwrite
        convolution = convolution_of(node)
        assert convolution is not None
        self._convolution: Convolution = convolution
        self._packs = getattr(self, _METHODS[_kind_of(node)])
        self._reads = torch.Tensor.contiguous if reads_planes(node) else channels_last
        self._held: _Held | None = None
        self.__name__ = "constant_convolution"

    def hold(self, weight: Tensor, bias: Tensor | None, norm: Sequence[Tensor], eps: float) -> None:
        """Fold and pack the weights of the present constants for all calls from now on."""
        self._held = self._packs(*folded(weight, bias, norm, eps))

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm: Sequence[Tensor],
        eps: float,
        added: Tensor | None,
        *settings: Any,
    ) -> Tensor:
        """Compute the operator; its constants are read unless their packed weights are held."""
        del settings
        run = self._held or self._packs(*folded(weight, bias, norm, eps))
        if added is not None:
            added = channels_last(added)
            added = added if self._overwrite else added.clone()
        return run(self._reads(x), added)

    def _winograd(self, weight: Tensor, bias: Tensor | None) -> _Held:
        fused = {"none": 1.0, "relu": 0.0, "leaky_relu": (*self._scalars, 0.0)[0]}
        slope = fused.get(self._activation, 1.0)
        stride, padding, *_ = self._places
        weight, bias = dense(weight, bias)
        points, images = winograd_points(self._convolution), self._convolution.image
        sizes = images.shape, stride, padding, slope, points
        run = on_tensors.winograd(self._library, *sizes, weight, bias, images.dtype)
        if self._activation in fused:
            return run
        return lambda x, added: ACTIVATIONS[self._activation](run(x, added), *self._scalars)

    def _product(self, weight: Tensor, bias: Tensor | None) -> _Held:
        count, _, *edges = self._convolution.image.shape
        make = functools.partial(on_tensors.pointwise, self._library, (count, *edges))
        return self._bounded(make, weight, bias)

    def _clamped(self, weight: Tensor, bias: Tensor | None) -> _Held:
        images, (stride, padding, *_) = self._convolution.image.shape, self._places
        make = functools.partial(on_tensors.few_channels, self._library, images, stride, padding)
        return self._bounded(make, weight, bias)

    def _bounded(self, make: Callable[..., _Held], weight: Tensor, bias: Tensor | None) -> _Held:
        """Return a function of a kernel that computes activations that are bounds."""
        name, scalars = self._activation, self._scalars
        known = {"relu": (0.0, math.inf), "hardtanh": tuple(scalars)}
        run = make(*dense(weight, bias), known.get(name, (-math.inf, math.inf)))
        if name == "none" or name in known:
            return run
        return lambda x, added: ACTIVATIONS[name](run(x, added), *scalars)

    def _onednn(self, weight: Tensor, bias: Tensor | None) -> _Held:
        stride, padding, dilation, groups = self._places
        packed = _torch.packed_convolution_weight(
            weight.contiguous(), padding, stride, dilation, groups, self._convolution.image.shape
        )
        places = padding, stride, dilation, groups
        plain, summed = _torch.packed_convolutions()
        activation, scalars = self._activation, self._scalars
        finish = ACTIVATIONS[activation]
        fused: tuple[str, list[float]] = ("none", [])
        if activation in _FUSED:
            fused = activation, scalars

        def run(x: Tensor, added: Tensor | None) -> Tensor:
            if added is not None:
                y = summed(added, x, packed, bias, *places, "add", 1.0, None, [], None)
                return finish(y, *scalars)
            y = plain(x, packed, bias, *places, *fused, "")
            return y if fused[0] == activation else finish(y, *scalars)

        return run


def is_product(convolution: Convolution) -> bool:
    """Return whether a constant convolution is a GEMM of the pixels as they lie."""
    one = convolution.moves_by_one and math.prod(convolution.weight.shape[2:]) == 1
    return one and not any(convolution.padding)


def packed_bytes(node: _Node) -> int:
    """Return about as many bytes as the packed weights of a node take; 0 for other operators."""
    if node.target is not constant_convolution.operator:
        return 0
    convolution = convolution_of(node)
    assert convolution is not None
    if kernel_for(convolution) is WINOGRAD:
        points = winograd_points(convolution)
        return 4 * math.prod(on_tensors.packed_shape(convolution.weight.shape, points))
    if is_product(convolution):
        outputs, inputs = convolution.weight.shape[:2]
        return 4 * inputs * on_tensors.packed_columns(outputs)
    return convolution.weight.nbytes


class Holding:
    """A program that packs the weights of its constants when they have changed since its last call.

    Args:
        run: takes the tensors of the slots.
        convolutions: of ``run``, with the slots of weight, bias and norm; None for no bias.
        checksum: see ``Changes``.
    """

    def __init__(
        self,
        run: Run,
        convolutions: Sequence[tuple[ConstantConvolution, Slots]],
        checksum: Checksum | None,
    ):
        self._run, self._convolutions = run, convolutions
        indices = {i for _, slots in convolutions for i in _indices(slots)}
        self._changes = Changes(sorted(indices), checksum)
        self._lock = Lock()

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run the program; see ``targets.base.Run``."""
        with self._lock:
            if self._changes.found(inputs):
                self._pack(inputs)
        return self._run(inputs)

    def _pack(self, inputs: Sequence[Tensor]) -> None:
        try:
            with torch.no_grad():
                for convolution, (weight, bias, norm, eps) in self._convolutions:
                    of_bias = None if bias is None else inputs[bias]
                    convolution.hold(inputs[weight], of_bias, [inputs[i] for i in norm], eps)
        except BaseException:
            self._changes.forget()
            raise


def _indices(slots: Slots) -> list[int]:
    weight, bias, norm, _ = slots
    return [weight, *([] if bias is None else [bias]), *norm]


def slots_of(node: _Node, positions: dict[_Node, int]) -> Slots:
    """Return the slots of weight, bias and norm of a node, and its eps."""
    arguments: tuple[Any, ...] = node.args
    _, weight, bias, norm, eps, *_ = arguments
    of_bias = None if bias is None else positions[bias]
    return positions[weight], of_bias, [positions[each] for each in norm], eps


# Methods of ``ConstantConvolution`` by the kind of our kernels that they call; oneDNN has none.
_METHODS = {"winograd": "_winograd", "products": "_product", "clamped": "_clamped", "": "_onednn"}


def _kind_of(node: _Node) -> str:
    convolution = convolution_of(node)
    assert convolution is not None
    if kernel_for(convolution) is WINOGRAD:
        return "winograd"
    if is_product(convolution):
        return "products"
    return "clamped" if reads_planes(node) else ""


def _suits(node: _Node, sums: bool, kind: str) -> bool:
    return (node.args[5] is not None) is sums and _kind_of(node) == kind


CONSTANT_CONVOLUTIONS = tuple(
    OwnKernel(
        operator=constant_convolution.operator,
        name="constant_convolution",
        kind=kind or "products",
        function=ConstantConvolution,
        suits=functools.partial(_suits, sums=sums, kind=kind),
        over=5 if sums else None,
    )
    for sums in (True, False)
    for kind in _METHODS
)
