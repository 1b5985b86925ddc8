"""GPU passes: devices, batch norms, biases, convolutions by im2col, attention."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch

from abele import _torch
from abele.containers import is_sequence
from abele.kernels.convolutions import convolution_of
from abele.passes._edit import editable, finished, inserted, rewritten_where
from abele.program import Program, subgraphs


def on_device(program: Program, device: torch.device) -> Program:
    """Move all values of a program to ``device``."""
    graph = editable(program)
    _move(graph, device)
    return finished(program, graph)


def _move(graph: torch.fx.GraphModule, device: torch.device) -> None:
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    for name, constant in graph.state_dict().items():
        if "." not in name:  # those of inner graphs move with their graph
            delattr(graph, name)
            graph.register_buffer(name, constant.to(device))
    for name, inner in list(subgraphs(graph)):
        # A copy: the program that is being moved keeps its own.
        moved = torch.fx.GraphModule(inner, copy.deepcopy(inner.graph))
        _move(moved, device)
        moved.recompile()
        setattr(graph, name, moved)
    # Shapes and types stay; the device of each value is found by running on tensors without data.
    mode = _torch.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        for node in graph.graph.nodes:
            node.meta["val"] = _moved(node.meta.get("val"), device)


def _moved(value: object, device: torch.device) -> object:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    if is_sequence(value):
        return type(value)(_moved(item, device) for item in value)
    return value


aten = torch.ops.aten

_NORMS = {
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
}
_HALF = (torch.float16, torch.bfloat16)


def gpu_norms(program: Program) -> Program:
    """Compute norms with mixed dtypes in float32, also in bodies of loops."""
    return rewritten_where(program, _is_mixed, _widen)


def _is_mixed(node: torch.fx.Node) -> bool:
    if node.target not in _NORMS:
        return False
    types = {each.meta["val"].dtype for each in node.all_input_nodes}
    return torch.float32 in types and not types.isdisjoint(_HALF)


def _widen(node: torch.fx.Node) -> None:
    for source in node.all_input_nodes:
        if _is_half(source.meta["val"]):
            wide = inserted(node, aten._to_copy.default, source, dtype=torch.float32)
            node.replace_input_with(source, wide)
    given: Any = node.meta["val"]
    wide: Any = tuple(each.float() if _is_half(each) else each for each in given)
    node.meta["val"] = wide
    for user in list(node.users):
        if user.target is operator.getitem and _is_half(user.meta["val"]):
            _narrow(user, wide[user.args[1]])


def _narrow(result: torch.fx.Node, wide: torch.Tensor) -> None:
    """Cast a widened result back to its captured dtype for its users."""
    given: Any = {"dtype": result.meta["val"].dtype}
    with result.graph.inserting_after(result):
        cast = result.graph.call_function(aten._to_copy.default, (result,), given)
    cast.meta = dict(result.meta)
    result.meta["val"] = wide
    result.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _HALF


_PRODUCTS: dict[Any, Any] = {
    aten.addmm.default: aten.mm.default,
    aten.baddbmm.default: aten.bmm.default,
}
_TYPES = (torch.float32, torch.float64)


def gpu_biases(program: Program) -> Program:
    """Split bias additions and bias gradients into separate nodes, also in bodies of loops."""
    program = rewritten_where(program, _is_plain, _split)
    return rewritten_where(program, _has_gradient, _sum_apart)


def _is_plain(node: torch.fx.Node) -> bool:
    if node.target not in _PRODUCTS or any(factor != 1 for factor in node.kwargs.values()):
        return False
    return node.meta["val"].dtype in _TYPES


def _split(node: torch.fx.Node) -> None:
    given: Any = node.args
    with node.graph.inserting_before(node):
        product = node.graph.call_function(_PRODUCTS[node.target], given[1:])
        result = node.graph.call_function(aten.add.Tensor, (product, given[0]))
    product.meta, result.meta = dict(node.meta), dict(node.meta)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _has_gradient(node: torch.fx.Node) -> bool:
    if node.target is not aten.convolution_backward.default:
        return False
    arguments: Any = node.args
    return arguments[-1][2] and arguments[0].meta["val"].dtype in _TYPES


def _sum_apart(node: torch.fx.Node) -> None:
    arguments: Any = node.args
    grad, mask = arguments[0], arguments[-1]
    of_image, of_weight, of_bias = node.meta["val"]
    dims = [d for d in range(grad.meta["val"].dim()) if d != 1]
    with node.graph.inserting_before(node):
        total = node.graph.call_function(aten.sum.dim_IntList, (grad, dims))
    total.meta = {**node.meta, "val": of_bias}
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 2:
            user.replace_all_uses_with(total)
            node.graph.erase_node(user)
    node.args = (*arguments[:-1], [*mask[:2], False])
    node.meta["val"] = (of_image, of_weight, None)


def gpu_gradients(program: Program, are_apart: Callable[[torch.fx.Node], bool]) -> Program:
    """Split convolution backward into input and weight gradient, also in bodies of loops.

    Args:
        program: after ``gpu_biases``.
        are_apart: whether to split a ``convolution_backward`` that computes both gradients.
    """

    def matches(node: torch.fx.Node) -> bool:
        if node.target is not aten.convolution_backward.default:
            return False
        mask: Any = node.args[-1]
        return mask[0] and mask[1] and are_apart(node)

    return rewritten_where(program, matches, _take_apart)


def _take_apart(node: torch.fx.Node) -> None:
    target: Any = node.target
    *rest, mask = tuple[Any, ...](node.args)
    of_image, of_weight, of_bias = node.meta["val"]
    with node.graph.inserting_before(node):
        first = node.graph.call_function(target, (*rest, [True, False, False]))
    first.meta = {**node.meta, "val": (of_image, None, None)}
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.args = (first, 0)
    node.args = (*rest, [False, *mask[1:]])
    node.meta["val"] = (None, of_weight, of_bias)


_Node = torch.fx.Node

# Pixels of a batch up to which patches are used, and how many numbers are summed at least.
MOST_PIXELS, LEAST_SUMMED = 512, 2048


class _Sizes(NamedTuple):
    samples: int
    channels: int
    results: int
    height: int
    width: int
    tall: int
    wide: int


def gpu_patches(program: Program) -> Program:
    """Lower small convolutions to im2col and GEMM, also in bodies of loops."""
    return rewritten_where(program, _is_small, _rewrite)


def _is_small(node: _Node) -> bool:
    sizes = _sizes(node) if node.target is aten.convolution.default else None
    if sizes is None:
        return False
    in_order = all(each.meta["val"].is_contiguous() for each in (node, node.all_input_nodes[0]))
    pixels = sizes.samples * sizes.height * sizes.width
    return (
        in_order
        and pixels <= MOST_PIXELS
        and sizes.channels * sizes.tall * sizes.wide >= LEAST_SUMMED
    )


def _sizes(node: _Node) -> _Sizes | None:
    """Return the sizes of a stride-1 convolution with "same" padding, else None."""
    convolution = convolution_of(node)
    if convolution is None or not convolution.moves_by_one:
        return None
    x, w = convolution.image, convolution.weight
    if x.dim() != 4 or {x.dtype, w.dtype} != {torch.float32}:
        return None
    *_, tall, wide = w.shape
    same = convolution.padding == (tall // 2, wide // 2) and tall % 2 == wide % 2 == 1
    if not same or tall * wide == 1 or not x.numel():
        return None
    samples, channels, height, width = x.shape
    return _Sizes(samples, channels, w.shape[0], height, width, tall, wide)


def _rewrite(node: _Node) -> None:
    sizes, given = _sizes(node), node.args
    assert sizes is not None
    image, weight, bias, *_ = cast("tuple[Any, ...]", given)
    rows = _ordered(node, weight, [sizes.results, -1])
    product = inserted(node, aten.mm.default, rows, _patches(node, image, sizes))
    images = [sizes.samples, sizes.height, sizes.width]
    shaped = inserted(node, aten.view.default, product, [sizes.results, *images])
    order = inserted(node, aten.permute.default, shaped, [1, 0, 2, 3])
    result = inserted(node, aten.clone.default, order, memory_format=torch.contiguous_format)
    if bias is not None:
        shaped = inserted(node, aten.view.default, bias, [1, sizes.results, 1, 1])
        result = inserted(node, aten.add.Tensor, result, shaped)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _patches(node: _Node, image: _Node, sizes: _Sizes) -> _Node:
    """Insert the im2col matrix of an image: [channels x taps, samples x pixels]."""
    high, broad = sizes.tall // 2, sizes.wide // 2
    padded = inserted(node, aten.constant_pad_nd.default, image, [broad, broad, high, high])
    row = sizes.width + 2 * broad
    plane = row * (sizes.height + 2 * high)
    shape = [sizes.channels, sizes.tall, sizes.wide, sizes.samples, sizes.height, sizes.width]
    steps = [plane, row, 1, sizes.channels * plane, row, 1]
    windows = inserted(node, aten.as_strided.default, padded, shape, steps)
    return _ordered(node, windows, [sizes.channels * sizes.tall * sizes.wide, -1])


def _ordered(node: _Node, value: _Node, shape: list[int]) -> _Node:
    """Insert nodes that make a tensor contiguous and reshape it."""
    if not value.meta["val"].is_contiguous():
        value = inserted(node, aten.clone.default, value, memory_format=torch.contiguous_format)
    return inserted(node, aten.view.default, value, shape)


FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_ALIGNED = 8


def gpu_attention(program: Program) -> Program:
    """Replace attention operators of the CPU by those of the GPU, also in bodies of loops."""
    return rewritten_where(
        program, lambda node: node.target in (FORWARD, BACKWARD), _rewrite_attention
    )


def _rewrite_attention(node: _Node) -> None:
    writer = _Writer(node)
    if node.target is FORWARD:
        writer.forward()
    else:
        writer.backward()


class _Writer:
    """Inserts GPU attention nodes in place of a CPU attention node."""

    def __init__(self, node: _Node):
        self._node = node

    def forward(self) -> None:
        q, k, v = self._arguments(3)
        options = self._options(3)
        size: int = v.meta["val"].shape[-1]
        mask = self._mask(options["attn_mask"], q, k)
        padded = [self._padded(each) for each in (q, k, v)]
        scale = _scale(options["scale"], q)
        call = aten._scaled_dot_product_efficient_attention.default
        made = self._call(call, *padded, mask, True, 0.0, options["is_causal"], scale=scale)
        self._take_results(made, [size, None])

    def backward(self) -> None:
        grad, q, k, v, y, logs = self._arguments(6)
        options = self._options(6)
        sizes = [each.meta["val"].shape[-1] for each in (q, k, v)]
        mask = self._mask(options["attn_mask"], q, k)
        padded = [self._padded(each) for each in (grad, q, k, v)]
        empty = self._call(aten.zeros.default, [], dtype=torch.int64, device=q.meta["val"].device)
        results = self._padded(y), logs, empty, empty
        wanted = [True, True, True, False]
        call = aten._scaled_dot_product_efficient_attention_backward.default
        made = self._call(
            call,
            *(padded[0], *padded[1:], mask, *results, 0.0, wanted, options["is_causal"]),
            scale=_scale(options["scale"], q),
        )
        self._take_results(made, sizes)

    def _arguments(self, count: int) -> list[_Node]:
        given: Any = self._node.args[:count]
        return list(given)

    def _options(self, first: int) -> dict[str, Any]:
        """Return the attention's options by name, from positional or keyword arguments."""
        names = ("dropout_p", "is_causal", "attn_mask", "scale")
        positional = dict(zip(names, self._node.args[first:], strict=False))
        defaults = {"dropout_p": 0.0, "is_causal": False, "attn_mask": None, "scale": None}
        return {**defaults, **positional, **self._node.kwargs}

    def _take_results(self, made: _Node, sizes: list[int | None]) -> None:
        """Replace uses of the old results by the new ones, without padding."""
        for user in list(self._node.users):
            index: Any = user.args[1]
            with self._node.graph.inserting_before(user):
                result = self._at(user, operator.getitem, made, index)
                size = sizes[int(index)]
                if size is not None and size % _ALIGNED:
                    result = self._at(user, aten.slice.Tensor, result, -1, 0, size)
            user.replace_all_uses_with(result)
            self._node.graph.erase_node(user)
        self._node.graph.erase_node(self._node)

    def _at(self, place: _Node, target: Any, *arguments: Any) -> _Node:
        node = self._node.graph.call_function(target, arguments)
        node.meta = dict(place.meta)
        return node

    def _call(self, target: Any, *arguments: Any, **options: Any) -> _Node:
        return inserted(self._node, target, *arguments, **options)

    def _padded(self, node: _Node) -> _Node:
        """Pad the last dimension of a tensor to an aligned size."""
        missing = -node.meta["val"].shape[-1] % _ALIGNED
        return self._call(aten.constant_pad_nd.default, node, [0, missing]) if missing else node

    def _mask(self, mask: _Node | None, q: _Node, k: _Node) -> _Node | None:
        """Return an attention mask expanded to all heads, with aligned rows."""
        if mask is None:
            return None
        columns = k.meta["val"].shape[-2]
        missing = -columns % _ALIGNED
        # Also where nothing is missing: a mask may be a slice of other memory.
        padded = self._call(aten.constant_pad_nd.default, mask, [0, missing])
        if missing:
            padded = self._call(aten.slice.Tensor, padded, -1, 0, columns)
        shape = [*q.meta["val"].shape[:-1], columns]
        return self._call(aten.expand.default, padded, shape)


def _scale(scale: float | None, q: _Node) -> float:
    return 1 / math.sqrt(q.meta["val"].shape[-1]) if scale is None else scale
