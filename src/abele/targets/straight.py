"""A graph as one Python function that finds whatever it calls without a look-up.

Small operators take about as long as Python takes to reach them. The code that a graph generates by
itself goes by name through ``torch.ops`` for each; here the function that does the work is bound.
"""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Callable
from typing import Any, cast

import torch

from abele import _torch
from abele.containers import is_dict, is_sequence
from abele.program import is_getitem
from abele.program.aliasing import last_uses
from abele.targets.clocked import GraphClocks

aten = torch.ops.aten

# torch's own functions call these operators with the same arguments and have less to check.
_DIRECT: dict[Any, Callable[..., Any]] = {
    aten.abs.default: torch.abs,
    aten.add.Tensor: torch.add,
    aten.addcdiv.default: torch.addcdiv,
    aten.addcmul.default: torch.addcmul,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.copy_.default: torch.Tensor.copy_,
    aten.div.Tensor: torch.div,
    aten.exp.default: torch.exp,
    aten.expand.default: torch.Tensor.expand,
    aten.lerp.Scalar: torch.lerp,
    aten.log.default: torch.log,
    aten.maximum.default: torch.maximum,
    aten.mean.dim: torch.mean,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.pow.Scalar: torch.pow,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.reciprocal.default: torch.reciprocal,
    aten.relu.default: torch.relu,
    aten.rsqrt.default: torch.rsqrt,
    aten.rsub.Scalar: torch.rsub,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.sqrt.default: torch.sqrt,
    aten.squeeze.dim: torch.squeeze,
    aten.stack.default: torch.stack,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unbind.int: torch.unbind,
    aten.unsafe_split.Tensor: torch.unsafe_split,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.where.self: torch.where,
    # A trace makes a view of what torch says of tensors without data; plain PyTorch copies where a
    # kernel's result is laid out in another way.
    aten.view.default: torch.reshape,
}


def function_of(
    root: torch.fx.GraphModule, clocks: GraphClocks | None = None, *, frees_inputs: bool = False
) -> Callable[[list[torch.Tensor]], Any]:
    """The graph as a function of the list of its inputs, which frees each value after its last use.

    Args:
        root: the graph and its constants.
        clocks: are looked at before and after whatever is called.
        frees_inputs: the function empties its list and frees inputs too after their last use.
    """
    writer = _Writer(root, clocks, frees_inputs)
    source = writer.source()
    exec(compile(source, f"<{type(root).__name__} as a function>", "exec"), writer.bound)
    return writer.bound["run"]


class _Writer:
    """Writes the source of one function.

    Attributes:
        bound: what the source calls by name.
    """

    def __init__(self, root: torch.fx.GraphModule, clocks: GraphClocks | None, frees_inputs: bool):
        self._root, self._clocks, self._frees_inputs = root, clocks, frees_inputs
        self.bound: dict[str, Any] = {}
        self._names: dict[torch.fx.Node, str] = {}
        self._bound_to: dict[int, str] = {}

    def source(self) -> str:
        """Python text that defines ``run``."""
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
                value = operators.attrgetter(str(node.target))(self._root)
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
        """A global name for a value, one for each."""
        name = self._bound_to.setdefault(id(value), f"c{len(self.bound)}")
        self.bound[name] = value
        return name

    def _call(self, node: torch.fx.Node) -> str:
        if is_getitem(node):
            return f"{self._text(node.args[0])}[{self._text(node.args[1])}]"
        arguments = [self._text(each) for each in node.args]
        arguments += [f"{name}={self._text(each)}" for name, each in node.kwargs.items()]
        return f"{self._bind(called(node))}({', '.join(arguments)})"

    def _clocked(self, node: torch.fx.Node, line: str) -> str:
        """The line that computes a node, between two looks at the clock where there are clocks."""
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
    """What does the work of a node."""
    target: Any = node.target
    if not isinstance(target, _torch.OpOverload):
        return target
    operator = cast("_torch.OpOverload", target)
    direct = _DIRECT.get(operator)
    return _torch.kernel_of(operator) if direct is None or _has_numbers(node, operator) else direct


def _has_numbers(node: torch.fx.Node, operator: _torch.OpOverload) -> bool:
    """Whether there is a number in the place of a tensor, which only operators understand."""
    given = zip(_torch.schema_of(operator).arguments, node.args, strict=False)
    return any(
        str(argument.type) == "Tensor" and not isinstance(value, torch.fx.Node)
        for argument, value in given
    )
