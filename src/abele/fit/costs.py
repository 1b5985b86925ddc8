"""What a kernel of a program costs: the time for its numbers, bytes and calls.

The machine's limits are measured where a program runs. What share of them an operator reaches, and
how many exponentials one of its elements is worth, was seen with clocks inside the programs of
``benchmarks/fit.py`` on two processors with AVX-512, and is assumed to be alike on others.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from abele.kernels.convolution import Convolution, convolution_of
from abele.machine_limits import MachineLimits
from abele.ops import gru_loop, lstm, lstm_loop, recurrent, rnn_loop
from abele.report.operators import moved_bytes, operations
from abele.targets.clocked import LOOP
from abele.targets.kernel_choice import NOBODY, Kernel

aten = torch.ops.aten
_Node = torch.fx.Node

#: Shares of the limits.
_PRODUCTS, _ATTENTION, _LIBRARY_CONVOLUTIONS = 0.87, 0.5, 0.75
#: Of the library's convolutions of each channel alone: vectors wait for the images.
_EACH_CHANNEL_ALONE = 0.45
_OUR_PRODUCTS, _OUR_ATTENTION, _RECURRENT = 0.96, 0.7, 0.73
_RECURRENT_LAYERS = {
    way
    for operators in (lstm, lstm_loop, recurrent, gru_loop, rnn_loop)
    for way in (operators.forward, operators.backward)
}
#: Of our convolutions. Winograd's needs fewer operations than are counted.
_OUR_CONVOLUTIONS = {"winograd": 1.6, "direct": 0.65, "patches": 0.65, "convolve": 1.0}
#: Of the library's work on elements, what is left in code that is compiled for a program.
_OUR_ELEMENTS = 0.2
#: Calls from Python, in those of the smallest operator: caches have forgotten it meanwhile.
_CALL, _CONVOLUTION_CALL, _OUR_CALL = 1.6, 12.0, 14.0
#: Bytes that code compiled for a program touches between two uses of a result, at most. State is
#: not read again before the next step.
_SOON = 12 * 2**20
#: Bytes for each of a weight that Winograd's convolutions bring into their form.
_TRANSFORMED = 8
#: Channels that the library's convolutions compute together.
_BLOCK, _FEW = 16, 3

#: Operators that compute more than they move: exponentials for each element of the largest tensor.
_ELEMENTS: dict[Any, float] = {
    aten.exp.default: 1.0,
    aten.log.default: 1.5,
    aten.tanh.default: 3.0,
    aten.sigmoid.default: 1.0,
    aten.erf.default: 2.0,
    aten.gelu.default: 0.9,
    aten.gelu_backward.default: 1.5,
    aten.silu.default: 1.3,
    aten._softmax.default: 1.2,
    aten._softmax_backward_data.default: 0.8,
    aten._log_softmax.default: 1.2,
    aten._log_softmax_backward_data.default: 0.8,
    aten.native_layer_norm.default: 0.9,
    aten.native_layer_norm_backward.default: 1.4,
    aten.native_group_norm.default: 0.9,
    aten.native_group_norm_backward.default: 0.9,
    aten._native_batch_norm_legit_functional.default: 2.5,
    aten._native_batch_norm_legit_no_training.default: 0.6,
    aten.native_batch_norm_backward.default: 0.8,
    aten.upsample_bilinear2d.default: 3.0,
    aten.upsample_bilinear2d_backward.default: 6.0,
    aten.max_pool2d_with_indices.default: 5.5,
}
# Of images with channels last, in which they compute many elements at a time.
_CHANNELS_LAST: dict[Any, float] = {aten.max_pool2d_with_indices.default: 1.0}
#: Of our kernels. A pool reads so many channels at once; of other images it reads one by one.
_OURS = {"max_pool": 0.15, "upsample": 0.25, "upsample_backward": 0.5}
_POOLED, _ONE_BY_ONE = 8, 3.0
_SECOND_MATRIX: dict[Any, int] = {
    aten.mm.default: 1,
    aten.bmm.default: 1,
    aten.addmm.default: 2,
    aten.baddbmm.default: 2,
}


def of_kernel(
    kernel: Kernel, limits: MachineLimits, *, inner: int, memory: int, called: bool
) -> float:
    """Seconds that a kernel takes, as is expected.

    Args:
        kernel: what runs, and who computes it.
        limits: of the machine.
        inner: bytes that it moves beside what it reads and makes.
        memory: bytes that all kernels of a step use: those that they find in no cache.
        called: from Python.
    """
    by_library = kernel.what == "torch"
    seconds = _call_s(kernel, limits) if called or by_library else 0.0
    if kernel.what == NOBODY or not kernel.nodes:
        return seconds
    moved = inner + (sum(map(moved_bytes, kernel.nodes)) if kernel.bytes is None else kernel.bytes)
    moved += sum(_TRANSFORMED * _weight_bytes(n) for n in kernel.nodes if "winograd" in kernel.what)
    rates = limits.of_type(_type(kernel.nodes[0]))
    between = max(memory, moved)
    if not (called or by_library or any(map(_writes_state, kernel.nodes))):  # read soon after
        between = min(between, _SOON)
    moving = moved / rates.streamed_per_s(between)
    # A loop beside a product adds a bias or copies an operand; another kernel multiplies.
    products = () if kernel.what == LOOP else kernel.nodes
    computing = sum(_computing(node, limits, kernel.what) for node in products)
    elements = (
        sum(_elements(node, kernel.what) for node in kernel.nodes) / limits.exponentials_per_s
    )
    if by_library and convolution_of(kernel.nodes[0]) is None:
        return seconds + max(computing, moving) + elements
    # Operands are reordered or packed before they are multiplied, and what follows comes after.
    return seconds + computing + moving + elements


def at_least(kernel: Kernel, limits: MachineLimits) -> float:
    """Seconds without which no code of these operators does what the kernel does."""
    share = max(_OUR_CONVOLUTIONS.values())
    rates = [limits.of_type(_type(node)).turned_per_s * share for node in kernel.nodes]
    return sum(operations(n) / rate for n, rate in zip(kernel.nodes, rates, strict=True))


def _writes_state(node: _Node) -> bool:
    return node.target is aten.copy_.default


def _call_s(kernel: Kernel, limits: MachineLimits) -> float:
    if kernel.what not in ("torch", NOBODY):
        return _OUR_CALL * limits.call_s
    convolves = any(convolution_of(node) for node in kernel.nodes)
    return (_CONVOLUTION_CALL if convolves else _CALL) * limits.call_s


def _computing(node: _Node, limits: MachineLimits, what: str) -> float:
    """Seconds for the operations of products, convolutions and attention."""
    count = operations(node)
    if not count:
        return 0.0
    rates = limits.of_type(_type(node))
    by_library = what == "torch"
    if node.target in _SECOND_MATRIX:
        index = _SECOND_MATRIX[node.target]
        first, second = _value(node.args[index - 1]), _value(node.args[index])
        rate = rates.products_per_s(
            left_turned=_is_turned(first), turned=_is_turned(second), columns=second.shape[-1]
        )
        return count / (rate * (_PRODUCTS if by_library else _OUR_PRODUCTS))
    convolution = convolution_of(node)
    if convolution is None:
        share = _ATTENTION if by_library else _OUR_ATTENTION
        if node.target in _RECURRENT_LAYERS:
            share = _RECURRENT
        return count / (rates.operations_per_s * share)
    ours = next((share for name, share in _OUR_CONVOLUTIONS.items() if name in what), None)
    if ours is not None:
        return count / (rates.operations_per_s * ours)
    share = _EACH_CHANNEL_ALONE if _is_each_alone(convolution) else _LIBRARY_CONVOLUTIONS
    return count * _padding(convolution) / (_convolution_rate(convolution, limits) * share)


def _is_turned(matrix: torch.Tensor) -> bool:
    return matrix.stride(-2) == 1 and matrix.stride(-1) != 1


def _convolution_rate(convolution: Convolution, limits: MachineLimits) -> float:
    """Operations in a second; of half numbers torch makes products of patches."""
    type_ = convolution.image.dtype
    rates = limits.of_type(type_)
    if type_ is not torch.float16 or not convolution.backward:
        return rates.operations_per_s
    return math.sqrt(rates.operations_per_s * rates.turned_per_s)


def _is_each_alone(convolution: Convolution) -> bool:
    return 1 < convolution.groups == convolution.image.shape[1]


def _padding(convolution: Convolution) -> float:
    """How many times as many channels the library computes as there are."""
    if convolution.image.dtype is torch.float16 or convolution.groups > 1:
        return 1.0
    outputs, inputs = convolution.weight.shape[:2]
    if convolution.transposed:
        outputs, inputs = inputs, outputs
    filled = _filled(outputs)
    if convolution.backward and inputs > _FEW:
        filled *= _filled(inputs)
    return filled


def _filled(channels: int) -> float:
    return math.ceil(channels / _BLOCK) * _BLOCK / channels


def _weight_bytes(node: _Node) -> int:
    convolution = convolution_of(node)
    if convolution is None:
        return 0
    return (2 if convolution.backward else 1) * convolution.weight.nbytes


def _elements(node: _Node, what: str) -> float:
    """The operator's own work on elements, in exponentials, by who computes it."""
    weight = _ELEMENTS.get(node.target, 0.0)
    if not weight:
        return 0.0
    largest = max(_tensors(node), key=torch.Tensor.numel)
    if what in _OURS:
        channels = largest.shape[1]
        several = what != "max_pool" or channels % _POOLED == 0
        return largest.numel() * (_OURS[what] if several else _ONE_BY_ONE)
    if node.target in _CHANNELS_LAST and _lies_channels_last(largest):
        weight = _CHANNELS_LAST[node.target]
    return weight * largest.numel() * (1.0 if what == "torch" else _OUR_ELEMENTS)


def _lies_channels_last(image: torch.Tensor) -> bool:
    return image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)


def _type(node: _Node) -> torch.dtype:
    """The floating-point type in which a node computes; float32 where there is none."""
    types = [each.dtype for each in _tensors(node) if each.is_floating_point()]
    return types[-1] if types else torch.float32


def _tensors(node: _Node) -> list[torch.Tensor]:
    """What a node reads and makes."""
    values = [each.meta.get("val") for each in (*node.all_input_nodes, node)]
    several: list[Any] = []
    for value in values:
        several += cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    return [each for each in several if isinstance(each, torch.Tensor)]


def _value(argument: object) -> torch.Tensor:
    return cast("_Node", argument).meta["val"]
