"""Programs in float16 or bfloat16 that are computed in float32 and stored in 16 bits.

Processors without half arithmetic multiply half matrices and convolve half images 5 to 60 times as
slowly as float32 ones, and those with it have no fast gradients of convolution weights. Large
GEMMs, convolutions and attention in bfloat16 stay as they are on processors with instructions for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from abele import _torch
from abele._torch import FakeTensor, OpOverload, laid_out
from abele._torch.copies import new_call
from abele.containers import is_sequence
from abele.ops import half_products, norm_activation
from abele.ops.half_products import is_bfloat16_product, runs_in_bfloat16
from abele.passes._edit import editable, finished
from abele.passes.rounded_products import has_rounded_factors
from abele.program import Program, has_effect, is_getitem, is_view, node_argument, writes
from abele.program.core import node_phase
from abele.program.cut import draws

aten = torch.ops.aten

_Node = torch.fx.Node
_Nodes = dict[_Node, _Node | None]  # values that are now float32, and rounded ones if needed
# Key of the metadata of float32 values: the 16-bit type of a captured program.
_STORED = "stored_in"
_NARROW = (torch.float16, torch.bfloat16)
# Smaller values, in elements, are not worth a cast; uses up to so many nodes later read float32.
_LARGE, _NEAR = 2**12, 16
# Smaller ones, as biases are, are cast once for all that read them.
_SMALL = 2**10
# Operators that are told the type of their input, with the number of that argument.
_TOLD: Mapping[Any, int] = {
    aten._softmax_backward_data.default: 3,
    aten._log_softmax_backward_data.default: 3,
}
# Operators that move elements, of which 16-bit copies are half as large.
_MOVES = (
    *(aten.stack.default, aten.cat.default, aten.clone.default),
    *(aten._unsafe_view.default, aten.reshape.default),
)
_Readers = Mapping[Any, tuple[int, ...]]
# Arguments that generated code reads in 16 bits without a float32 copy, by operator.
_READ_IN_16_BITS: _Readers = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.bmm.default: (0, 1),
    aten.baddbmm.default: (1, 2),
    aten.native_group_norm.default: (0,),
    aten.native_group_norm_backward.default: (0, 1),
    aten.sum.dim_IntList: (0,),
}
_NOBODY: _Readers = MappingProxyType({})
# Operators that ask for exact values, as a maximum has to equal its element, or for a type's range.
_EXACT = frozenset(
    (
        *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.nextafter, aten.nan_to_num),
        *(aten.isinf, aten.isfinite, aten.isnan, aten.isposinf, aten.isneginf),
    )
)


# Operators that read and write bfloat16 images without a float32 copy.
_OF_IMAGES = frozenset(
    (
        *(aten.add.Tensor, aten.relu.default, aten.leaky_relu.default, aten.cat.default),
        *(aten.threshold_backward.default, aten.leaky_relu_backward.default),
        *(
            aten._native_batch_norm_legit_functional.default,
            aten.native_batch_norm_backward.default,
        ),
        aten._native_batch_norm_legit_no_training.default,
        *(aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default),
        aten.sum.dim_IntList,
    )
)


def computed_in_float32(program: Program) -> Program:
    """Compute the 16-bit operators of forward and backward in float32, except fast products.

    Explicit casts, random numbers, writes, updates and results of the program see values that are
    rounded to 16 bits; in between, values are not rounded.
    """
    return _computed(program, runs_in_bfloat16)


def with_bfloat16_images(program: Program) -> Program:
    """Compute like ``computed_in_float32``, but images between bfloat16 convolutions as they are.

    Norms, sums, activations and pools of large bfloat16 images round each result, as torch does.
    """
    return _computed(program, lambda node: runs_in_bfloat16(node) or _is_of_images(node))


def _is_of_images(node: _Node) -> bool:
    """Return whether a node computes large bfloat16 images from bfloat16 images."""
    if node.target not in _OF_IMAGES or not half_products.has_bfloat16_products():
        return False
    value = node.meta["val"]
    results = value[:1] if is_sequence(value) else [value]
    given = [each.meta["val"] for each in node.all_input_nodes]
    images = [each for each in (*given, *results) if each.dim() == 4 and each.is_floating_point()]
    kept = all(each.dtype is torch.bfloat16 and each.device.type == "cpu" for each in images)
    return kept and any(each.numel() >= _LARGE for each in images)


def _computed(program: Program, keeps: Callable[[_Node], bool]) -> Program:
    if not any(map(_is_half, program.graph.graph.nodes)):
        return program
    graph = editable(program)
    for node in list(graph.graph.nodes):
        if node.target is aten.convolution_backward.default and runs_in_bfloat16(node):
            _sum_gradient_of_bias(node)
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    narrow, small = _Nodes(), _Nodes()
    products = set(filter(keeps, order))  # asked before their operands are widened
    for node in order:
        if writes(node):
            small.clear()
        if node not in products and _is_widened(node, narrow):
            _widen(node, narrow, small)
        elif node.op in ("call_function", "output"):
            for each in node.all_input_nodes:  # rounded to 16 bits where it is computed
                if each in narrow:
                    node.replace_input_with(each, _narrowed(each, narrow))
            if _casts_statistics(node) and node.users:
                min(node.users, key=order.__getitem__).prepend(node)
    return finished(program, graph)


def _sum_gradient_of_bias(node: _Node) -> None:
    """Sum the gradient of a transposed convolution's bias by itself.

    oneDNN needs 80 times as long for it as torch's sum does.
    """
    arguments: tuple[Any, ...] = node.args
    grad, *_, transposed, _, _, mask = arguments
    if not (transposed and mask[2]):
        return
    dims = [0, *range(2, grad.meta["val"].dim())]
    node.update_arg(10, [*mask[:2], False])
    for user in [each for each in node.users if each.args[1] == 2]:
        with node.graph.inserting_before(node):
            total = node.graph.call_function(aten.sum.dim_IntList, (grad, dims))
        total.meta = dict(user.meta)
        user.replace_all_uses_with(total)
        node.graph.erase_node(user)


def arithmetic(program: Program, *, images: bool = False) -> str:
    """Describe what runs in another type than its tensors', for reports; empty if nothing does.

    Args:
        program: before any lowering pass.
        images: whether it is lowered by ``with_bfloat16_images``.
    """
    nodes = program.graph.graph.nodes
    if not any(map(_is_half, nodes)):
        return ""
    rounded = sum(map(has_rounded_factors, nodes))
    if rounded:
        return f"; {rounded} float32 products in bfloat16"
    products = sum(map(runs_in_bfloat16, nodes))
    if not products:
        return "; what has 16 bits is computed in float32"
    kinds = "GEMMs, convolutions and attentions"
    if images:
        kinds += f" and {sum(map(_is_of_images, nodes))} operators between them"
    return f"; {products} {kinds} run in bfloat16, other 16-bit operators in float32"


def biases_in_products(program: Program) -> Program:
    """Let oneDNN add the biases of bfloat16 linear layers where it stores their results.

    ``addmm`` writes the bias to all rows of the result first, and adds the product to them.
    """
    operator = _torch.linear_with_bias()
    suits = [node for node in program.graph.graph.nodes if _is_linear(node)]
    if operator is None or not suits:
        return program
    graph = editable(program)
    for node in filter(_is_linear, list(graph.graph.nodes)):
        bias, x, turned = (node_argument(node, index) for index in range(3))
        arguments: tuple[Any, ...] = x, node_argument(turned, 0), bias, "none", [], ""
        with graph.graph.inserting_before(node):
            new = new_call(graph.graph, operator, arguments, node.meta)
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    return finished(program, graph)


def _is_linear(node: _Node) -> bool:
    """Return whether a node is a bfloat16 GEMM of dense rows with a dense weight, and a bias."""
    if node.target is not aten.addmm.default or node.kwargs or not is_bfloat16_product(node):
        return False
    bias, x, turned = (node_argument(node, index) for index in range(3))
    weight = node_argument(turned, 0) if turned.target is aten.t.default else None
    dense = weight is not None and all(v.meta["val"].is_contiguous() for v in (x, weight))
    return dense and bias.meta["val"].shape == node.meta["val"].shape[1:]


def stored_in_16_bits(program: Program) -> Program:
    """Store large values of 16-bit programs in 16 bits between uses far from each other."""
    return _stored(program, _NOBODY, lambda _: False)


def stored_for_generated_code(program: Program, is_fused: Callable[[_Node], bool]) -> Program:
    """Store large values in 16 bits like ``stored_in_16_bits``, and what GEMMs and norms read.

    Args:
        program: after ``computed_in_float32``.
        is_fused: returns whether no memory is needed for a node's value, so that no copy pays.
    """
    return _stored(program, _READ_IN_16_BITS, is_fused)


def _stored(program: Program, readers: _Readers, is_fused: Callable[[_Node], bool]) -> Program:
    if not any(_STORED in node.meta for node in program.graph.graph.nodes):
        return program
    graph = editable(program)
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    rounded: dict[_Node, _Node] = {}
    for node in order:
        if _STORED not in node.meta or not _is_large(node) or is_fused(node):
            continue
        # Copies that other values brought are read right away.
        far = [
            user
            for user in node.users
            if order.get(user, 0) - order[node] > _NEAR or _reads(user, node, readers)
        ]
        # Strides of a copy are other ones than those of a view.
        if far and all(user.target is not aten.as_strided.default for user in far):
            _read_rounded(node, far, _rounded(node, rounded), order)
    return finished(program, graph)


def _reads(user: _Node, node: _Node, readers: _Readers) -> bool:
    """Return whether an operator reads a value in 16 bits, wherever it reads it."""
    read = [index for index, each in enumerate(user.args) if each is node]
    return bool(read) and set(read) <= set(readers.get(user.target, ()))


def _is_large(node: _Node) -> bool:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return False
    return value.numel() >= _LARGE


def _rounded(node: _Node, known: dict[_Node, _Node]) -> _Node:
    """Return the 16-bit copy of a value; what a norm saves mostly is its result, copied once."""
    if node in known:
        return known[node]
    # What a product reads is rounded already, where it is computed.
    casts = (each for each in node.users if each.target is aten._to_copy.default)
    cast = next((c for c in casts if c.kwargs == {"dtype": node.meta[_STORED]}), None)
    if cast is not None and cast is node.next:
        known[node] = cast
        return cast
    origin = node_argument(node, 0) if is_getitem(node) else node
    first = _result_of_norm(origin) if node.args[1:] == (1,) else None
    if first is None:
        known[node] = _cast(node, node.meta[_STORED], before=node.next)
    else:
        copy = _rounded(first, known)
        with node.graph.inserting_after(node if copy < node else copy):
            arguments = (node, first, copy)
            known[node] = new_call(node.graph, norm_activation.saved, arguments, copy.meta)
    return known[node]


def _result_of_norm(norm: _Node) -> _Node | None:
    """Return the result of a norm that saves it for backward where it can; None for others."""
    if norm.target is not norm_activation.forward or not norm.args[7]:
        return None
    return next((user for user in norm.users if is_getitem(user) and user.args[1] == 0), None)


def _read_rounded(node: _Node, users: list[_Node], copy: _Node, order: dict[_Node, int]) -> None:
    """Read a value from its 16-bit copy, cast once for users near each other."""
    wide, at = node, None
    for user in sorted(users, key=order.__getitem__):
        if at is None or order[user] - at > _NEAR:
            wide, at = _cast(copy, torch.float32, before=user), order[user]
        user.replace_input_with(node, wide)


def _casts_statistics(node: _Node) -> bool:
    """Return whether a node casts new running statistics, which fusions want read late."""
    if node.target is not aten._to_copy.default:
        return False
    source = node_argument(node, 0)
    return is_getitem(source) and source.meta["val"].dim() == 1


def _is_half(value: Any) -> bool:
    """Return whether a node's value, or one of its values, is a 16-bit tensor."""
    if isinstance(value, _Node):
        value = value.meta.get("val")
    if is_sequence(value):
        return any(map(_is_half, value))
    return isinstance(value, torch.Tensor) and value.dtype in _NARROW


def _is_widened(node: _Node, narrow: _Nodes) -> bool:
    """Return whether an operator reads 16 bits and may read float32 instead."""
    given = (*node.args, *node.kwargs.values())
    if node.op != "call_function":
        return False
    if node.target not in _TOLD and any(isinstance(each, torch.dtype) for each in given):
        return False
    if is_getitem(node) or is_view(node):
        return node.args[0] in narrow
    target = node.target
    if target in _MOVES and not any(each in narrow for each in node.all_input_nodes):
        return False
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "abele"):
        return False  # the body of a loop, or an operator of a user's, expects its types
    if node_phase(node) == "update" or target.overloadpacket in _EXACT:
        return False
    if draws(node) or has_effect(node) or writes(node):
        return False
    return any(each in narrow or _is_half(each) for each in node.all_input_nodes)


def _widen(node: _Node, narrow: _Nodes, small: _Nodes) -> None:
    """Read float32 instead of 16 bits, and return it; casts of small values are shared."""
    for each in node.all_input_nodes:
        if each not in narrow and _is_half(each):
            wide = small.get(each) or _cast(each, torch.float32, before=node)
            if each.meta["val"].numel() < _SMALL:
                small[each] = wide
            node.replace_input_with(each, wide)
    if node.target in _TOLD:
        node.update_arg(_TOLD[node.target], torch.float32)
    if _is_half(node):
        value = node.meta["val"]
        first = next(each for each in (value if is_sequence(value) else [value]) if _is_half(each))
        node.meta = {**node.meta, "val": _in_float32(value), _STORED: first.dtype}
        narrow[node] = None


def _narrowed(node: _Node, narrow: _Nodes) -> _Node:
    """Return the rounded value of a node; that of a view is a view of the rounded value."""
    known = narrow[node]
    if known is not None:
        return known
    base = node.args[0] if is_view(node) and node.target is not aten.as_strided.default else None
    value, dtype = node.meta["val"], node.meta[_STORED]
    rounded = _narrowed(base, narrow) if isinstance(base, _Node) and base in narrow else None
    if rounded is None or not _is_laid_out_alike(rounded, base) or is_sequence(value):
        made = _cast(node, dtype, before=node.next)
    else:
        with node.graph.inserting_before(node.next):
            arguments = (rounded, *node.args[1:])
            made = node.graph.call_function(node.target, arguments, node.kwargs)  # type: ignore[arg-type]
        view = laid_out(value.shape, value.stride(), dtype, value.fake_device, value.fake_mode)
        made.meta = {**node.meta, "val": view}
        del made.meta[_STORED]
    narrow[node] = made
    return made


def _is_laid_out_alike(first: _Node, second: Any) -> bool:
    a, b = first.meta["val"], second.meta["val"]
    return a.stride() == b.stride() and isinstance(b, FakeTensor) and not b.storage_offset()


def _cast(value: _Node, dtype: torch.dtype, *, before: _Node) -> _Node:
    """Add a node that casts a value, with the source line and phase of its reader or itself."""
    like = before if dtype is torch.float32 else value
    with before.graph.inserting_before(before):
        cast = before.graph.call_function(aten._to_copy.default, (value,), {"dtype": dtype})
    cast.meta = {**like.meta, "val": _in_type(value.meta["val"], dtype)}
    return cast


def _in_float32(value: Any) -> Any:
    """Return a tensor without data, or several of them, in float32 instead of 16 bits."""
    if is_sequence(value):
        return tuple(map(_in_float32, value))
    return _in_type(value, torch.float32) if _is_half(value) else value


def _in_type(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without data in another type."""
    if not isinstance(value, FakeTensor) or not value.is_contiguous():
        return value.to(dtype)
    # A tenth of the time of the cast.
    return laid_out(value.shape, value.stride(), dtype, value.fake_device, value.fake_mode)
