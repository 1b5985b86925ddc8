"""Replacements of operators that programs cannot contain, and values of constants.

Each replacement computes bitwise the results of its operator. A value that is computed from
constants alone is known while forward is traced.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch import OpOverload
from abele.containers import is_sequence
from abele.contexts import held
from abele.ops import lstm
from abele.program import called_operator, has_tag, is_getitem
from abele.program.aliasing import base, written
from abele.trace.plain_tensors import written_stand_in

aten = torch.ops.aten


# If all arguments of an operator are computed from constants, ``results`` computes its result.
# ``_index`` is for a constant mask and a tensor that is not constant.


def _index(x: torch.Tensor, indices: list[torch.Tensor | None]) -> Any:
    """Index a tensor by the positions at which constant boolean masks are true."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
        elif (mask := constant_value(index)) is None:  # known if it follows from a function's state
            places += [column.contiguous() for column in index.nonzero().unbind(1)]
        else:
            with _torch.outside_the_trace():
                columns = [column.contiguous() for column in mask.nonzero().unbind(1)]
            places += map(aten.lift_fresh_copy.default, columns)
    if len(places) == len(indices) and all(a is b for a, b in zip(places, indices, strict=True)):
        return NotImplemented
    return aten.index.Tensor(x, places)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> Any:
    if constant_value(mask) is None:
        return NotImplemented
    untyped: Any = torch
    shape: torch.Size = untyped.broadcast_shapes(x.shape, mask.shape)
    return _index(x.expand(shape), [mask.expand(shape)])


# -- other operators ----------------------------------------------------------------------------


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Trace variants of ``native_batch_norm`` whose schemas declare the writes to statistics."""
    if mean is None or var is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    if not training:
        return aten._native_batch_norm_legit_no_training.default(
            x, weight, bias, mean, var, momentum, eps
        )
    return aten._native_batch_norm_legit.default(
        x, weight, bias, mean, var, training, momentum, eps
    )


def _product(first: torch.Tensor, second: torch.Tensor, *others: Any, **settings: Any) -> Any:
    """Refuse factors of different types as the kernels do; tensors without data do not notice."""
    if first.dtype != second.dtype:
        names = " and ".join(_NAMES.get(each.dtype, str(each.dtype)) for each in (first, second))
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {names}")
    return NotImplemented


def _sum_of_product(added: torch.Tensor, first: torch.Tensor, *others: Any, **settings: Any) -> Any:
    return _product(first, *others)


# Torch's names of types in messages.
_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
}


def _bernoulli_in_place(x: torch.Tensor, p: float = 0.5, generator: Any = None) -> torch.Tensor:
    """Draw into a tensor in the order of its memory; the operator without a write does not."""
    if x.is_contiguous() or generator is not None:
        return NotImplemented
    return x.copy_(bernoulli_in_memory_order(x, p))


def bernoulli_in_memory_order(like: torch.Tensor, p: float) -> torch.Tensor:
    """Draw ones with probability ``p`` in the order of a tensor's memory, as ``bernoulli_`` does.

    Args:
        like: has the shape and strides of the result.
        p: of a one.
    """
    order = sorted(range(like.dim()), key=lambda dim: -like.stride(dim))
    drawn = torch.bernoulli(like.permute(order), p)
    return drawn.permute([order.index(dim) for dim in range(like.dim())])


def _random_from(
    x: torch.Tensor, low: int, high: int | None, generator: torch.Generator | None = None
) -> Any:
    """Trace ``random_`` by another overload, as ``from`` is a keyword and cannot be read back."""
    if high is None or generator is not None:
        return NotImplemented
    numbers = torch.randint(low, high, x.shape, dtype=x.dtype, device=x.device)
    return x.copy_(numbers)


def _cross_entropy_of_logits(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """Keep the kernel of the logits' cross entropy: exp and log would differ in the last bits."""
    if any(each.dtype != x.dtype for each in (target, weight, pos_weight) if each is not None):
        return NotImplemented
    log_sigmoid = torch.nn.functional.logsigmoid(x)
    if pos_weight is not None:
        log_sigmoid = ((pos_weight - 1) * target + 1) * log_sigmoid
    loss = (1 - target) * x - log_sigmoid
    if weight is not None:
        loss = loss * weight
    return {0: loss.clone, 1: loss.mean, 2: loss.sum}[reduction]()


_ASSUMED: contextvars.ContextVar[list[torch.Tensor] | None] = contextvars.ContextVar(
    "assumed", default=None
)


@contextlib.contextmanager
def assumed_false() -> Generator[list[torch.Tensor]]:
    """Answer torch's tests of tensor values with False in a ``with`` block.

    Yields:
        The tensors that have to be false, for programs to check when they run.
    """
    asked: list[torch.Tensor] = []
    with held(_ASSUMED, asked):
        yield asked


def _equal(a: torch.Tensor, b: torch.Tensor) -> Any:
    asked = _ASSUMED.get()
    if asked is None:
        return NotImplemented
    asked.append((a == b).all())
    return False


def _scalar(x: torch.Tensor) -> Any:
    asked = _ASSUMED.get()
    if asked is None or x.dtype is not torch.bool:
        return NotImplemented
    asked.append(x)
    return False


PORTABLE_OPERATORS: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    getattr(aten.random_, "from"): _random_from,
    aten.bernoulli_.float: _bernoulli_in_place,
    aten.mm.default: _product,
    aten.addmm.default: _sum_of_product,
    aten.binary_cross_entropy_with_logits.default: _cross_entropy_of_logits,
    aten.mkldnn_rnn_layer.default: lstm.forward_of,
    aten.mkldnn_rnn_layer_backward.default: lstm.backward_of,
    aten.index.Tensor: _index,
    aten.masked_select.default: _masked_select,
    aten.equal.default: _equal,
    aten._local_scalar_dense.default: _scalar,
}


def conjugate_numbers(graph: torch.fx.GraphModule) -> None:
    """Fold the conjugate of a Python number, as its operator takes only tensors.

    Autograd conjugates the factor in ``x * 2j``, a tensor that the tracer writes as a number.
    """
    for node in list(graph.graph.nodes):
        if node.target is not aten._conj.default or isinstance(node.args[0], torch.fx.Node):
            continue
        number = complex(node.args[0]).conjugate()
        for user in list(node.users):
            user.args = torch.fx.map_arg(
                user.args, lambda each, old=node, new=number: new if each is old else each
            )
        graph.graph.erase_node(node)


@contextlib.contextmanager
def portable_kernels() -> Generator[None]:
    """Trace portable operators instead of vendor kernels that hide their writes.

    Their batch norms hide writes like the native one, and their LSTM cannot be traced without
    data. Convolutions are not concerned: which library runs them is decided when they run.
    """
    with torch.backends.cudnn.flags(enabled=False), _torch.without_onednn():
        yield


def constant_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a traced tensor that is computed from constants, else None."""
    mode = _torch.get_proxy_mode()
    if not isinstance(tensor, _torch.FakeTensor):
        changed = written_stand_in(tensor)
        if changed is None:
            return tensor
        tensor = changed
    node = _torch.traced_node(tensor)
    return None if node is None or mode is None else computed(node, mode.tracer)


def computed(
    node: torch.fx.Node,
    tracer: torch.fx.Tracer,
    known: Callable[[torch.fx.Node], torch.Tensor | None] = lambda node: None,
) -> torch.Tensor | None:
    """Return the present value of a node if it is computed from constants, else None.

    Writes into its memory and into that of its operands are taken into account, through any view.

    Args:
        node: the node.
        tracer: of its graph.
        known: returns the value of an input of the graph that may be used like a constant.
    """
    dependencies = _dependencies(node, tracer.graph)
    inputs = [each for each in dependencies if each.op == "placeholder"]
    if not all(map(_computes_the_same_now, dependencies - {*inputs})):
        return None
    with _torch.outside_the_trace(), _torch.without_torch_function_modes():
        given = {each: known(each) for each in inputs}
        values = _constants(dependencies, tracer.root)
        for each, value in given.items():
            if value is None:
                return None
            values[each] = value.clone()
        for each in tracer.graph.nodes:
            if each in dependencies and each not in values:
                args, kwargs = torch.fx.map_arg((each.args, each.kwargs), values.__getitem__)
                values[each] = each.target(*args, **kwargs)
        return values[node]


def steps_of(node: torch.fx.Node, tracer: torch.fx.Tracer) -> Any:
    """Return what computes a node from inputs of its graph; None if constants are written."""
    dependencies = _dependencies(node, tracer.graph)
    constants = {each for each in dependencies if each.op == "get_attr"}
    changed = {base(target) for each in dependencies for target in written(each)}
    if not changed.isdisjoint(map(base, constants)):
        return None
    steps: list[Any] = []
    for each in tracer.graph.nodes:
        if each in constants:
            value = getattr(tracer.root, str(each.target))
            steps.append((each, lambda value=value: value, (), {}))
        elif each in dependencies and each.op != "placeholder":
            steps.append((each, each.target, each.args, each.kwargs))
    return steps


def _dependencies(node: torch.fx.Node, graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return all nodes that affect a node's current value: operands, and writes to them."""
    order = {each: index for index, each in enumerate(graph.nodes)}
    writers: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for each in graph.nodes:
        for target in written(each):
            writers.setdefault(base(target), []).append(each)
    dependencies: set[torch.fx.Node] = set()
    read_until: dict[torch.fx.Node, int] = {}
    stack = [(node, len(order))]
    while stack:
        current, time = stack.pop()
        memory = base(current)
        if read_until.get(memory, 0) < time:
            read_until[memory] = time
            stack += [(each, order[each]) for each in writers.get(memory, ()) if order[each] < time]
        if current not in dependencies:
            dependencies.add(current)
            stack += [(source, order[current]) for source in current.all_input_nodes]
    return dependencies


def _constants(
    nodes: set[torch.fx.Node], root: torch.nn.Module
) -> dict[torch.fx.Node, torch.Tensor]:
    """Return the constants among some nodes; constants that other nodes write are copied."""
    named = {node: getattr(root, str(node.target)) for node in nodes if node.op == "get_attr"}
    changed = {base(target) for node in nodes for target in written(node)}
    memories: dict[torch.fx.Node, torch.UntypedStorage] = {}
    for node, value in named.items():
        memory = base(node)
        if memory in changed:
            if memory not in memories:
                memories[memory] = value.untyped_storage().clone()
            layout = value.storage_offset(), value.shape, value.stride()
            named[node] = torch.empty(0, dtype=value.dtype, device=value.device).set_(
                memories[memory], *layout
            )
    return named


def results(
    function: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    value_of: Callable[[torch.Tensor], torch.Tensor | None],
) -> Any:
    """Return an operator's results if ``value_of`` knows the values of its tensors, else None."""
    missing = False

    def value(each: Any) -> Any:
        nonlocal missing
        if is_sequence(each):
            return type(each)(value(item) for item in each)
        if not isinstance(each, torch.Tensor):
            return each
        constant = value_of(each)
        missing = missing or constant is None
        return constant

    args = [value(each) for each in args]
    kwargs = {name: value(each) for name, each in kwargs.items()}
    if missing:
        return None
    with _torch.outside_the_trace(), _torch.without_torch_function_modes():
        return function(*args, **kwargs)


def _computes_the_same_now(node: torch.fx.Node) -> bool:
    """Return whether a node is a constant or a deterministic operation."""
    of_graph = node.op == "get_attr" or is_getitem(node) or _is_of_torch(node)
    return of_graph and not has_tag(node, torch.Tag.nondeterministic_seeded)


def _is_of_torch(node: torch.fx.Node) -> bool:
    """Return whether an operator is torch's; host calls and prints may vary between runs."""
    operator = called_operator(node)
    return operator is not None and operator.namespace == "aten"
