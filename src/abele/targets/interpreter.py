"""A graph compiled to one Python function that binds the operators it calls directly.

Small operators take about as long as their dispatch in Python. The code that FX generates looks
each up by name in ``torch.ops``; here the function itself is bound.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele.containers import is_dict, is_sequence
from abele.ops.half_products import in_float32, is_half_product
from abele.program import Program, has_effect, is_getitem, writes
from abele.program.aliasing import last_uses
from abele.program.cut import draws
from abele.targets.base import GraphClocks, Take

aten = torch.ops.aten

# torch's own functions call these operators with the same arguments and have less to check.
_SAME = (
    *("abs.default", "add.Tensor", "addcdiv.default", "addcmul.default", "addmm.default"),
    *("bmm.default", "cat.default", "clone.default", "div.Tensor", "exp.default", "lerp.Scalar"),
    *("log.default", "maximum.default", "mean.dim", "mm.default", "mul.Tensor", "neg.default"),
    *("native_layer_norm.default", "permute.default", "pow.Scalar", "pow.Tensor_Scalar"),
    *("reciprocal.default", "relu.default", "rsqrt.default", "rsub.Scalar", "select.int"),
    *("sigmoid.default", "sqrt.default", "squeeze.dim", "stack.default", "sub.Tensor"),
    *("sum.dim_IntList", "t.default", "tanh.default", "transpose.int", "unbind.int"),
    *("unsafe_split.Tensor", "unsqueeze.default", "where.self"),
)
_DIRECT: dict[Any, Callable[..., Any]] = {
    **{operator.attrgetter(each)(aten): getattr(torch, each.split(".")[0]) for each in _SAME},
    aten.copy_.default: torch.Tensor.copy_,
    aten.expand.default: torch.Tensor.expand,
    # A trace makes a view of what torch says of tensors without data; plain PyTorch copies where a
    # kernel's result is laid out in another way.
    aten.view.default: torch.reshape,
}


def function_of(
    root: torch.fx.GraphModule,
    clocks: GraphClocks | None = None,
    *,
    frees_inputs: bool = False,
    take: Take | None = None,
) -> Callable[[list[torch.Tensor]], Any]:
    """Compile a graph to a Python function that frees each value after its last use.

    Args:
        root: the graph and its constants.
        clocks: timestamps around each call, if any.
        frees_inputs: the function empties its list and frees inputs too after their last use.
        take: called instead of each write into an input.
    """
    writer = _Writer(root, clocks, frees_inputs, take)
    source = writer.source()
    exec(compile(source, f"<{type(root).__name__} as a function>", "exec"), writer.bound)
    return writer.bound.pop("run")  # else it would be in its own globals: freed late, as a cycle


class _Writer:
    """A writer of the Python source of a graph's function.

    Attributes:
        bound: global variables of the source.
    """

    def __init__(
        self,
        root: torch.fx.GraphModule,
        clocks: GraphClocks | None,
        frees_inputs: bool,
        take: Take | None,
    ):
        self._root, self._clocks, self._frees_inputs, self._take = root, clocks, frees_inputs, take
        self.bound: dict[str, Any] = {}
        self._names: dict[torch.fx.Node, str] = {}
        self._bound_to: dict[int, str] = {}

    def source(self) -> str:
        """Return Python source text that defines ``run``, the function of the graph."""
        nodes = list(self._root.graph.nodes)
        freed = ("call_function", "placeholder") if self._frees_inputs else ("call_function",)
        uses = last_uses([(node, *node.all_input_nodes) for node in nodes])
        last = [[each for each in values if each.op in freed] for values in uses]
        inputs = [self._name(node) for node in nodes if node.op == "placeholder"]
        lines = ["def run(inputs):"]
        if inputs:
            lines.append(f"    {', '.join(inputs)}, = inputs")
        if self._frees_inputs:
            lines.append("    inputs.clear()")
        for node, unused in zip(nodes, last, strict=True):
            if node.op == "output":
                lines.append(f"    return {self._text(node.args[0])}")
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(self._root)
                self._names[node] = self._bind(value)
            elif node.op != "placeholder":
                # The name comes second: it is not known in its own arguments.
                text = self._call(node)
                lines.append(f"    {self._clocked(node, f'{self._name(node)} = {text}')}")
                if unused:
                    lines[-1] += "; del " + ", ".join(map(self._name, unused))
        return "\n".join(lines) + "\n"

    def _name(self, node: torch.fx.Node) -> str:
        return self._names.setdefault(node, f"v{len(self._names)}")

    def _bind(self, value: object) -> str:
        """Return the global variable name bound to a value; equal objects share it."""
        name = self._bound_to.setdefault(id(value), f"c{len(self.bound)}")
        self.bound[name] = value
        return name

    def _call(self, node: torch.fx.Node) -> str:
        if is_getitem(node):
            return f"{self._text(node.args[0])}[{self._text(node.args[1])}]"
        if self._take is not None and writes(node):
            position = self._root.graph.find_nodes(op="placeholder").index(node.args[0])
            return f"{self._bind(self._take)}({position}, {self._text(node.args[1])})"
        arguments = [self._text(each) for each in node.args]
        arguments += [f"{name}={self._text(each)}" for name, each in node.kwargs.items()]
        return f"{self._bind(called(node))}({', '.join(arguments)})"

    def _clocked(self, node: torch.fx.Node, line: str) -> str:
        """Return the source line that computes a node, with timestamps if it is timed."""
        if self._clocks is None or is_getitem(node):
            return line
        look, moments = self._bind(self._clocks.look), self._bind(self._clocks.moments)
        first = self._clocks.place(node)
        return f"{moments}[{first}] = {look}(); {line}; {moments}[{first + 1}] = {look}()"

    def _text(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self._name(value)
        if is_sequence(value):
            parts = "".join(f"{self._text(each)}, " for each in value)
            return f"({parts})" if isinstance(value, tuple) else f"[{parts}]"
        if is_dict(value):
            return f"{{{', '.join(f'{key!r}: {self._text(each)}' for key, each in value.items())}}}"
        plain = value is None or type(value) in (bool, int, str)
        if plain or (type(value) is float and math.isfinite(value)):
            return repr(value)
        return self._bind(value)


def called(node: torch.fx.Node) -> Callable[..., Any]:
    """Return the Python function that computes a graph node."""
    target: Any = node.target
    if not isinstance(target, _torch.OpOverload):
        return target
    called = cast("_torch.OpOverload", target)
    direct = _DIRECT.get(called)
    if direct is None or _has_numbers(node, called):
        direct = _torch.kernel_of(called)
    return in_float32(direct) if is_half_product(node) else direct


def _has_numbers(node: torch.fx.Node, called: _torch.OpOverload) -> bool:
    """Return whether a Python number is passed for a tensor, which only operators accept."""
    given = zip(_torch.schema_of(called).arguments, node.args, strict=False)
    return any(
        str(argument.type) == "Tensor" and not isinstance(value, torch.fx.Node)
        for argument, value in given
    )


Node = torch.fx.Node
# What nobody has written holds anything.
_UNSET = {
    *(aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default),
    *(aten.empty_strided.default, aten.new_empty_strided.default),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Types:
    """A substitution of dtypes in an interpreted program.

    Attributes:
        dtype: replaces float32; float64 replaces all narrower floating types, too. None: no
            substitution.
    """

    dtype: torch.dtype | None = None

    def of(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that replaces a dtype of the captured program."""
        if self.dtype is torch.float64:
            if dtype.is_complex:
                return torch.complex128
            return torch.float64 if dtype.is_floating_point else dtype
        return self.dtype if self.dtype is not None and dtype is torch.float32 else dtype


class Interpretation:
    """The values of a program's nodes, interpreted in replaced dtypes.

    Args:
        program: the program.
        arguments: one tensor per input slot.
        types: the substitution of dtypes.

    Attributes:
        values: computed values by node.
        rounded: operators that could not be computed in the replaced dtypes.
    """

    def __init__(self, program: Program, arguments: Sequence[torch.Tensor], types: Types):
        self._root, self._types = program.graph, types
        self.values: dict[Node, Any] = {
            node: argument.to(types.of(argument.dtype))
            for node, argument in zip(program.placeholders(), arguments, strict=True)
        }
        self.rounded: set[str] = set()

    def compute(self, node: Node) -> Any:
        """Compute the value of a node and store it in ``values``."""
        self.values[node] = self.computed(node, self.values)
        return self.values[node]

    def computed(self, node: Node, values: Mapping[Node, Any]) -> Any:
        """Compute the value of a node from its arguments' values, of any dtypes."""
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(self._root)
            return self._cast(value, self._types.of) if _is_tensor(value) else value
        captured = draws(node) or has_effect(node)
        if not captured:
            try:
                return self._called(node, values, self._types.of)
            except (RuntimeError, NotImplementedError):
                if self._types.dtype is None:
                    raise
                self.rounded.add(str(node.target))
        result = self._called(node, values, lambda dtype: dtype)
        return _mapped(result, lambda each: self._cast(each, self._types.of))

    def _called(
        self, node: Node, values: Mapping[Node, Any], of: Callable[[torch.dtype], torch.dtype]
    ) -> Any:
        def value(argument: Any) -> Any:
            if isinstance(argument, Node):
                return _mapped(values[argument], lambda each, n=argument: _as(each, n, of))
            if isinstance(argument, torch.dtype):
                return of(argument)
            if is_dict(argument):
                return {key: value(each) for key, each in argument.items()}
            if is_sequence(argument) and not isinstance(argument, str):
                return type(argument)([value(each) for each in argument])
            return argument

        arguments = [value(each) for each in node.args]
        named = {name: value(each) for name, each in node.kwargs.items()}
        return called(node)(*arguments, **named)

    @staticmethod
    def _cast(value: torch.Tensor, of: Callable[[torch.dtype], torch.dtype]) -> torch.Tensor:
        return value.to(of(value.dtype))


def _as(value: torch.Tensor, node: Node, of: Callable[[torch.dtype], torch.dtype]) -> torch.Tensor:
    """Cast a value to the replaced dtype of its node; integers stay unchanged."""
    captured = node.meta.get("val")
    if not isinstance(captured, torch.Tensor) or not (
        value.is_floating_point() or value.is_complex()
    ):
        return value
    return value.to(of(captured.dtype))


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if _is_tensor(value):
        return function(value)
    if is_sequence(value) and not isinstance(value, str):
        return type(value)([_mapped(each, function) for each in value])
    return value


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def rounded(value: Any, node: Node, types: Types) -> Any:
    """Cast a node's value to its dtype under the substitution ``types``."""
    return _mapped(value, lambda each: _as(each, node, types.of))


def calls(program: Program) -> list[Node]:
    """Return the nodes that compute values, in order, without in-place writes."""
    nodes = program.graph.graph.nodes
    return [n for n in nodes if n.op not in ("placeholder", "output") and not writes(n)]


def measured(node: Node) -> bool:
    """Return whether a node's value is a nonempty, initialized tensor, worth comparing."""
    value = node.meta.get("val")
    return (
        node.op == "call_function"
        and node.target not in _UNSET
        and isinstance(value, torch.Tensor)
        and value.numel() > 0
    )


def all_values(
    program: Program,
    arguments: Sequence[torch.Tensor],
    types: Types,
    random_state: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Interpret a program and return all comparable node values by node name.

    Args:
        program: the program.
        arguments: one tensor per input slot.
        types: the substitution of dtypes.
        random_state: initial state of torch's generator, which is restored afterwards.
    """
    run = Interpretation(program, arguments, types)
    outside = torch.get_rng_state()
    torch.set_rng_state(random_state)
    try:
        for node in calls(program):
            run.compute(node)
    finally:
        torch.set_rng_state(outside)
    return {node.name: value for node, value in run.values.items() if measured(node)}
