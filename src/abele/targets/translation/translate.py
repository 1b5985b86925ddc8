"""Translation of a program's graph to operations on buffers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import torch

from abele._torch import OpOverload, schema_of
from abele.program import Program, is_getitem, is_view, returned_nodes
from abele.targets.translation.operations import (
    Foreign,
    Operation,
    Pointwise,
    places_changed,
)
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride, is_dense
from abele.targets.translation.pointwise import COMPUTED, RULES, Rule, literal

#: Takes the translator and a node, and returns the place of its result, or several, or ``()`` where
#: nothing is in memory. None if it cannot be translated.
Handler = Callable[[Any, torch.fx.Node], Any]


aten = torch.ops.aten

_SMALLEST = torch.finfo(torch.float32).smallest_normal  # 1.2e-38
# Operators that are told positions in the memory that a tensor is a part of.
_COUNT_FROM_THE_START = (
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
)
#: They share memory in a program without writes, whatever their schemas say.
VIEWS = (
    aten._unsafe_view.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.reshape.default,
)


class Translator:
    """A lowering of a program's graph to operations on buffers.

    Args:
        program: after the passes of the lowering.
        handlers: translate operators that are no views and have no rule; torch computes the others.
        types: dtypes that generated loops support.
        constants: positions of inputs that change only between calls.

    Attributes:
        graph: of the program.
        places: views of its nodes' values.
        operations: in the order of the graph.
        writers: the last operation that writes each buffer.
        inputs: views of the program's arguments.
        constants: names of the graph's constant tensors, by buffer index.
        outputs: views of its results.
        fixed: buffers of ``constants``, and those that are computed of them alone.
        subnormals: whether it has a subnormal number, as in ``(mask + 1e-45).log()``.
    """

    def __init__(
        self,
        program: Program,
        handlers: Mapping[Any, Handler],
        types: Collection[torch.dtype],
        constants: Collection[int] = (),
    ):
        self._handlers, self._types, self.graph = handlers, types, program.graph
        self.places: dict[torch.fx.Node, Any] = {}
        self.operations: list[Operation] = []
        self.writers: dict[Buffer, Operation] = {}
        self.constants: list[str] = []
        self.subnormals = False
        self._made = 0
        self._node: torch.fx.Node | None = None  # that is being translated
        for slot, node in enumerate(program.placeholders()):
            self.places[node] = self._owned(Kind.INPUT, slot, node.meta["val"])
        self.inputs: list[Place] = [self.places[node] for node in program.placeholders()]
        self.fixed: set[Buffer] = {self.inputs[index].buffer for index in constants}
        for node in self.graph.graph.nodes:
            if node.op == "get_attr":
                constant = operator.attrgetter(str(node.target))(self.graph)
                self.places[node] = self._owned(Kind.CONSTANT, len(self.constants), constant)
                self.subnormals |= _has_subnormals(constant)
                self.constants.append(str(node.target))
            elif node.op == "call_function":
                self._node = node
                numbers = (n for n in (*node.args, *node.kwargs.values()) if isinstance(n, float))
                self.subnormals |= any(0.0 < abs(n) < _SMALLEST for n in numbers)
                self._call(node)
        outputs = [self._returned(node, i) for i, node in enumerate(returned_nodes(self.graph))]
        for each in self.operations:
            each.resolve()
        self.outputs = [each.resolved() for each in outputs]

    # -- memory ----------------------------------------------------------------------------

    def new(self, shape: tuple[int, ...], dtype: torch.dtype, stride: Any = None) -> Place:
        """Allocate a buffer for a result; contiguous unless dense strides are given."""
        stride = contiguous_stride(shape) if stride is None else tuple(stride)
        if not is_dense(shape, stride):
            stride = contiguous_stride(shape)
        self._made += 1
        buffer = Buffer(Kind.ARENA, self._made, dtype, math.prod(shape))
        return Place(buffer, tuple(shape), stride)

    def new_like(self, node: torch.fx.Node, index: int | None = None) -> Place:
        """Allocate a buffer for a node's result, in its layout."""
        value = node.meta["val"] if index is None else node.meta["val"][index]
        return self.new(tuple(value.shape), value.dtype, value.stride())

    def _owned(self, kind: Kind, index: int, value: torch.Tensor) -> Place:
        """Return the view of a tensor whose memory the caller, program or torch owns."""
        shape, stride = tuple(value.shape), tuple(value.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        size = extent if math.prod(shape) else 0
        return Place(Buffer(kind, index, value.dtype, size), shape, stride)

    def moved(self, place: Place, target: Place) -> bool:
        """Alias a tensor's buffer to the target of its copy, if that is safe.

        Args:
            place: the tensor, which is never written again.
            target: the sub-buffer that is to have the same values.
        """
        buffer = place.buffer
        if buffer.kind is not Kind.ARENA or buffer.inside is not None or not place.whole:
            return False
        if place.dtype is not target.dtype or target.stride != place.stride:
            return False
        if not place.contiguous or target.buffer is buffer:
            return False
        buffer.inside = target.buffer, target.offset
        return True

    # -- operations ------------------------------------------------------------------------

    def add(self, operation: Operation) -> None:
        """Append an operation to the translated program."""
        operation.position, operation.part_of = len(self.operations), self._node
        self.operations.append(operation)
        self.writers.update((place.buffer, operation) for place in operation.writes)
        read = {place.buffer for place in operation.reads}
        if read and read <= self.fixed and not isinstance(operation, Foreign):
            self.fixed.update(place.buffer for place in operation.writes)

    def pointwise(self, operands: Any, expression: Any, result: Place) -> None:
        """Append an elementwise expression of tensors and numbers, in the result's dtype."""
        types = [result.dtype] * len(operands)
        self._pointwise(list(operands), types, expression, result)

    def _pointwise(self, operands: list[Any], types: Any, expression: Any, result: Place) -> None:
        types = [COMPUTED.get(dtype, dtype) for dtype in types]
        texts: list[Any] = [
            each if isinstance(each, Place) else literal(each, dtype)
            for each, dtype in zip(operands, types, strict=True)
        ]
        reads = [each for each in texts if isinstance(each, Place)]
        self.add(Pointwise(reads, [result], texts, types, expression))

    def contiguous(self, place: Place) -> Place:
        """Return a tensor's contiguous view, copied if necessary."""
        if place.contiguous:
            return place
        result = self.new(place.shape, place.dtype)
        self.pointwise([place], "{0}".format, result)
        return result

    def _call(self, node: torch.fx.Node) -> None:
        arguments: Any = node.args
        if node in self.places:
            return  # an operation of an earlier node does its work
        if is_getitem(node):
            self.places[node] = self.places[arguments[0]][arguments[1]]
        elif not (self._view(node) or self._written(node) or self._by_rule(node)):
            handler = self._handlers.get(node.target)
            result = handler(self, node) if handler is not None and self._known(node) else None
            if result is None:
                self._foreign(node)
            else:
                self.places[node] = result

    def _known(self, node: torch.fx.Node) -> bool:
        """Return whether generated loops support the dtypes of all tensors of a node."""
        nodes = (node, *node.all_input_nodes)
        values = [value for each in nodes for value in _several(each.meta.get("val"))]
        return all(
            isinstance(value, torch.Tensor) and value.dtype in self._types
            for value in values
            if value is not None
        )

    def _view(self, node: torch.fx.Node) -> bool:
        """Translate a view operator to a view of the same buffer, without code."""
        if not (is_view(node) or node.target in VIEWS):
            return False
        source, *arguments = cast("tuple[Any, ...]", node.args)
        place = self.places[source]
        if not isinstance(place, Place):
            return False
        memory = torch.empty(place.buffer.size, dtype=place.dtype, device="meta")
        value = memory.as_strided(place.shape, place.stride, place.offset)
        unsafe = node.target is aten._unsafe_view.default  # on tensors that lie elsewhere it copies
        call: Any = aten.view.default if unsafe else node.target
        try:
            viewed = call(value, *arguments, **node.kwargs)
        except RuntimeError:  # its elements do not lie so that they could be seen in this way
            return self._reshaped(node, place)
        views: list[torch.Tensor] = _several(viewed)
        if any(v.dtype is not place.dtype or v.is_conj() or v.is_neg() for v in views):
            return False
        if any(_end(view) > place.buffer.size for view in views):
            return False  # it would read beside its memory, which torch refuses
        if any(view.untyped_storage() is not memory.untyped_storage() for view in views):
            return self._reshaped(node, place)
        results = [
            Place(place.buffer, tuple(v.shape), v.stride(), int(v.storage_offset())) for v in views
        ]
        self.places[node] = results[0] if isinstance(viewed, torch.Tensor) else results
        return True

    def _reshaped(self, node: torch.fx.Node, place: Place) -> bool:
        """Translate a view operator that requires a contiguous copy."""
        if place.dtype not in self._types:
            return False
        value = node.meta["val"]
        copied = self.contiguous(place)
        self.places[node] = Place(copied.buffer, tuple(value.shape), contiguous_stride(value.shape))
        return True

    def _written(self, node: torch.fx.Node) -> bool:
        """Translate a ``copy_`` into an input slot."""
        if node.target is not aten.copy_.default:
            return False
        arguments: Any = node.args
        slot, value = (self.places[each] for each in arguments[:2])
        self.places[node] = slot
        if slot.dtype not in self._types or value.dtype not in self._types:
            return False
        if value.buffer is slot.buffer and value != slot:
            # Elements of the slot would be read after they have been written.
            copy = self.new(value.shape, value.dtype)
            self.pointwise([value], "{0}".format, copy)
            value = copy
        self.pointwise([value], "{0}".format, slot)
        return True

    def _by_rule(self, node: torch.fx.Node) -> bool:
        """Translate an elementwise operator to a C++ expression."""
        rule, value = RULES.get(node.target), node.meta.get("val")
        if rule is None or not isinstance(value, torch.Tensor) or value.dtype not in self._types:
            return False
        if rule.floating and not value.dtype.is_floating_point:
            return False
        arguments = schema_of(cast("OpOverload", node.target)).arguments
        names = [argument.name for argument in arguments if not argument.kwarg_only]
        scalars = {"alpha", "value", "approximate", "rounding_mode"} & set(node.kwargs)
        positional = dict(zip(names, node.args, strict=False))
        extra = {name: node.kwargs[name] for name in node.kwargs if name in (*names, *scalars)}
        try:
            operands, expression = rule.form(*positional.values(), **extra)
            operands = [self._operand(each) for each in operands]
            types = _types(rule, operands, value.dtype, self._types)
            stride = self._stride_of(value, operands)
            result = self.new(tuple(value.shape), value.dtype, stride)
            self._pointwise(operands, types, expression, result)
        except NotImplementedError:
            return False
        self.places[node] = result
        return True

    def _stride_of(self, value: torch.Tensor, operands: list[Any]) -> tuple[int, ...]:
        """Return the strides of an elementwise result: channels-last in inference, as operands."""
        if self.fixed and value.dim() == 4 and value.is_contiguous():
            for each in operands:
                if isinstance(each, Place) and each.shape == value.shape and each.stride[1] == 1:
                    return each.stride  # that are not dense are not taken
        return value.stride()

    def _operand(self, value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        place = self.places[value]
        if not isinstance(place, Place) or place.dtype not in self._types:
            raise NotImplementedError(value)
        return place

    def _foreign(self, node: torch.fx.Node) -> None:
        """Translate an operator to an ATen fallback."""
        arguments: Any = torch.fx.map_arg(node.args, lambda each: self.places[each])
        options: Any = torch.fx.map_arg(node.kwargs, lambda each: self.places[each])
        value = node.meta.get("val")
        results = [self._made_by_torch(each) for each in _several(value)]
        several = isinstance(value, list | tuple)
        self.places[node] = results if several else results[0]
        target: Any = node.target
        if target in _COUNT_FROM_THE_START:
            target, arguments = _from_the_start(target, arguments)
        reads: list[Place] = []
        places_changed((arguments, options), reads.append)
        writes = [each for each in results if each is not None]
        if node.target is aten.copy_.default:
            writes, results = [arguments[0]], []
            self.places[node] = arguments[0]
        if target is aten.view.default:  # what is viewed may lie otherwise than where it was traced
            target = aten.reshape.default
        if is_view(node) and any(place.buffer.kind is not Kind.FOREIGN for place in reads):
            target = _copied(target)
        self.add(Foreign(reads, writes, target, arguments, options, results, several))

    def _made_by_torch(self, value: Any) -> Place | None:
        if not isinstance(value, torch.Tensor):
            return None
        self._made += 1
        return self._owned(Kind.FOREIGN, self._made, value)

    # -- results ---------------------------------------------------------------------------

    def _returned(self, node: torch.fx.Node, index: int) -> Place:
        """Return a result's view in a buffer that the caller may keep, copied if needed."""
        place = self.places[node]
        taken = place.buffer.kind is Kind.OUTPUT
        alone = place.buffer.inside is None and not taken
        in_order = place.contiguous or not node.meta["val"].is_contiguous()
        if place.buffer.kind is Kind.ARENA and place.whole and alone and in_order:
            place.buffer.kind, place.buffer.index = Kind.OUTPUT, index
            return place
        if place.buffer.kind is Kind.FOREIGN and (place.whole or place.dtype not in self._types):
            return place
        if place.dtype not in self._types:  # a part of something, which only torch can copy
            copied = self._made_by_torch(node.meta["val"])
            assert copied is not None
            self.add(Foreign([place], [copied], aten.clone.default, (place,), {}, [copied], False))
            return copied
        shape = place.shape
        buffer = Buffer(Kind.OUTPUT, index, place.dtype, math.prod(shape))
        result = Place(buffer, shape, contiguous_stride(shape))
        self.pointwise([place], "{0}".format, result)
        return result


def _has_subnormals(constant: torch.Tensor) -> bool:
    """Return whether a constant has numbers that are subnormal in float32."""
    if constant.dtype not in (torch.float32, torch.float64):
        return False  # of the others, half has subnormals, but none is one in float32
    sizes = constant.abs()
    return bool(((sizes > 0) & (sizes < _SMALLEST)).any())


def _from_the_start(target: Any, arguments: Any) -> tuple[Any, Any]:
    """Wrap an operator so that it receives the whole buffer of its argument, copied."""
    place, *others = arguments
    shape, stride, offset = place.shape, place.stride, place.offset

    def call(memory: torch.Tensor, *others: Any, **options: Any) -> Any:
        return target(memory.clone().as_strided(shape, stride, offset), *others, **options)

    return call, (Place(place.buffer, (place.buffer.size,), (1,)), *others)


def _end(view: torch.Tensor) -> int:
    """Return the end offset of a view in its memory, in elements; 0 if it is empty."""
    steps = zip(view.shape, view.stride(), strict=True)
    extent = view.storage_offset() + 1 + sum((n - 1) * step for n, step in steps)
    return int(extent) if view.numel() else 0


def _copied(target: Any) -> Any:
    """Wrap a view operator so that it copies: its base may be overwritten later, out of sight."""

    def call(*arguments: Any, **options: Any) -> Any:
        value = target(*arguments, **options)
        if isinstance(value, torch.Tensor):
            return value.clone().resolve_conj().resolve_neg()
        return [each.clone() for each in value]

    return call


def _several(value: Any) -> list[Any]:
    """Return the values of a list, or a single value as a list."""
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]


def _types(
    rule: Rule, operands: list[Any], result: torch.dtype, known: Collection[torch.dtype]
) -> list[torch.dtype]:
    """Return the dtype to which each operand of an elementwise operator is converted."""
    if rule.promoted:
        common = operands[0].dtype if isinstance(operands[0], Place) else result
        samples = [_sample(each) for each in operands]
        if len(samples) == 2:
            common = torch.result_type(*samples)
        if common not in known:
            raise NotImplementedError(common)
        return [common] * len(operands)
    types = [result] * len(operands)
    if rule.mask:
        types[0] = torch.bool
    return types


def _sample(operand: Any) -> Any:
    """Return a meta tensor that type promotion treats as the operand."""
    if not isinstance(operand, Place):
        return operand
    return torch.empty((0,) * bool(operand.shape), dtype=operand.dtype, device="meta")
