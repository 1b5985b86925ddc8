"""A cache of traced operators: equal argument layouts reuse the nodes of an earlier call.

    a = relu(x); b = relu(y)   ->   the second costs a tenth if x and y have equal layouts

The results of an operator on tensors without data, and the nodes that it traces, depend only on the
layouts of its tensors and on its other arguments. Each call still creates its own nodes, with the
user's line of that call. Only operators of torch are cached: others may do anything while traced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import traceback
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele._torch import OpOverload
from abele._torch.copies import copied_node
from abele.containers import is_sequence
from abele.errors import CaptureError
from abele.program.aliasing import base
from abele.trace import scopes
from abele.trace.adopted import Adopted
from abele.trace.decompositions import computed, results, steps_of
from abele.trace.fake_results import (
    UnknownError,
    corrected,
    key_of_call,
    layout_of,
    stated_results,
)
from abele.trace.plain_tensors import PlainMemory, PlainTensors
from abele.trace.writes import has_out, refuse_shared, write_results
from abele.warn import user_line

Run = Callable[[], Any]
Arguments = Sequence[Any]
Keywords = dict[str, Any]
Trace = Callable[[OpOverload, Arguments, Keywords], Any]
Copies = dict[torch.fx.Node, torch.fx.Node]
Left = tuple[PlainMemory, torch.Tensor | None]

_NOT_REMEMBERED = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
}
_META = ("val", "tensor_meta")
_OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_LIFT = torch.ops.aten.lift_fresh.default
_AS_STRIDED = torch.ops.aten.as_strided.default
_DETACH = torch.ops.aten.detach.default


@dataclasses.dataclass(frozen=True)
class _Remembered:
    """The cached nodes and results of one call of an operator.

    Attributes:
        nodes: copies of the nodes that it traced, in order.
        inputs: placeholders of the nodes of its tensor arguments.
        results: its structure of results, with a ``_Made`` or ``_Given`` for each tensor.
    """

    nodes: list[torch.fx.Node]
    inputs: list[torch.fx.Node]
    results: Any


@dataclasses.dataclass(frozen=True)
class _Made:
    """A new tensor in a cached result: layout, node, and the argument whose memory it shares."""

    like: _torch.FakeTensor
    node: torch.fx.Node
    shares: int | None


@dataclasses.dataclass(frozen=True)
class _Given:
    """An argument that a cached operator call returns, and its node from then on."""

    index: int
    node: torch.fx.Node


@contextlib.contextmanager
def remembering(
    mode: _torch.FakeTensorMode,
    state: Mapping[int, str] | None = None,
    adopted: Adopted | None = None,
) -> Generator[tuple[AssignedData, Callable[[], list[Left]]]]:
    """Cache operators in the current trace, and record source lines, in a ``with`` block.

    Args:
        mode: the fake tensor mode of the trace.
        state: memory of parameters and buffers, with their names.
        adopted: receives further tensors as slots; by default they are constants.

    Yields:
        The tensors whose data forward assigns, and a function that returns the plain tensors that
        forward has changed, with their values where known.
    """
    with _torch.Interception() as trace:
        plain = PlainTensors(trace, mode, state or {}, adopted)
        assigned = AssignedData(trace)
        memo = _Memo(trace, mode, plain, assigned, adopted)
        trace.intercept(memo.call, memo.created, stated_results)
        # Backward computes checkpoints again without the modes of forward.
        again = _torch.recomputed_within(lambda: assigned)
        with plain.open(), assigned, again:
            yield (
                assigned,
                lambda: [(each, computed(each.node, trace.tracer)) for each in plain.written()],
            )


class _Memo:
    def __init__(
        self,
        trace: _torch.Interception,
        mode: _torch.FakeTensorMode,
        plain: PlainTensors,
        assigned: AssignedData,
        adopted: Adopted | None = None,
    ):
        self._adopted = adopted
        self._code = None if adopted is None else adopted.code
        self._trace, self._mode, self._plain = trace, mode, plain
        self._assigned = assigned
        self._calls: dict[Any, _Remembered | None] = {}
        self._stacks: dict[tuple[tuple[CodeType, int], ...], str] = {}
        self._memory = torch.fx.Graph()
        self._refused: dict[OpOverload, bool] = {}

    # -- the user's lines --------------------------------------------------------------

    def created(self, node: torch.fx.Node) -> None:
        """Record the active ``forward`` calls (their source lines) on a node just created."""
        if node.op in ("call_function", "get_attr"):
            stack = self._stack()
            if stack:
                node.meta["stack_trace"] = stack

    def _stack(self) -> str:
        """Return the frames of ``forward`` functions and of the traced one, outermost first."""
        frame = inspect.currentframe()
        frames: list[tuple[CodeType, int]] = []
        while frame is not None:
            if frame.f_code.co_name == "forward" or frame.f_code is self._code:
                frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        key = tuple(reversed(frames))
        if key not in self._stacks:
            summaries = [
                traceback.FrameSummary(code.co_filename, line, code.co_name)
                for code, line in key
                if not _torch.is_of_the_tracer(code.co_filename)
            ]
            self._stacks[key] = "".join(
                traceback.StackSummary.from_list(summaries).format()
            ).strip()
        return self._stacks[key]

    # -- operators ---------------------------------------------------------------------

    def call(self, function: OpOverload, args: Arguments, kwargs: Keywords, trace: Trace) -> Any:
        """Return an operator's results, from the cache or traced by ``trace``."""
        if function is _LIFT and not isinstance(args[0], _torch.FakeTensor):
            return self._plain.lifted(args[0])
        if function is _AS_STRIDED:
            self._plain.check_strided(args, kwargs)
        if function.overloadpacket is SET:
            return self._assigned.set(
                function, args, lambda value: self.call(_DETACH, [value], {}, trace)
            )
        originals: dict[int, torch.Tensor] = {}
        args = [self._plain.exchanged(each, originals) for each in args]
        kwargs = {name: self._plain.exchanged(each, originals) for name, each in kwargs.items()}
        if kwargs.get("generator") is not None:
            _refuse_generator(function)
        if torch.Tag.inplace_view in function.tags:
            self._plain.refuse_new_shape(function, args[0])
        self._plain.note_writes(function, args, kwargs)
        result = self._traced_write(function, args, kwargs, trace)
        return _with_originals(result, originals) if originals else result

    def _traced_write(
        self, function: OpOverload, args: Arguments, kwargs: Keywords, trace: Trace
    ) -> Any:
        def call(function: OpOverload, args: Arguments, kwargs: Keywords) -> Any:
            return self._traced(function, args, kwargs, trace)

        if not _torch.schema_of(function).is_mutable:
            return call(function, args, kwargs)
        if has_out(function):
            return write_results(function, args, kwargs, call)
        refuse_shared(function, args[0])
        return call(function, args, kwargs)

    def _traced(self, function: OpOverload, args: Arguments, kwargs: Keywords, trace: Trace) -> Any:
        if _OF_VALUES.intersection(function.tags):
            constants = results(function, args, kwargs, self._constant_value)
            if self._adopted is not None:
                self._adopted.note_read(used=constants is not None)
            if constants is not None:
                return self._as_constants(constants)

        def run() -> Any:
            return corrected(self._trace, function, args, trace(function, args, kwargs))

        if function not in self._refused:
            tags = _NOT_REMEMBERED.intersection(function.tags)
            self._refused[function] = function.namespace != "aten" or bool(tags)
        if self._refused[function]:
            return run()
        tensors: list[_torch.FakeTensor] = []
        nodes: list[torch.fx.Node] = []

        def of_tensor(tensor: torch.Tensor) -> Hashable:
            return self._key(tensor, tensors, nodes)

        try:
            with _torch.without_torch_function_modes():
                key = key_of_call(function, args, kwargs, of_tensor), *_state()
        except UnknownError:
            return run()  # traced as usual
        if key not in self._calls:
            before = next(iter(reversed(self._trace.graph.nodes)), None)
            result = run()
            self._calls[key] = self._remembered(before, nodes, tensors, result)
            return result
        remembered = self._calls[key]
        return run() if remembered is None else self._again(remembered, nodes, tensors)

    def _constant_value(self, tensor: Any) -> torch.Tensor | None:
        node = self._trace.node_of(tensor)
        if node is None:
            return None
        if self._adopted is None:
            return computed(node, self._trace.tracer)
        value = computed(node, self._trace.tracer, self._adopted.value_of)
        if value is not None:
            self._adopted.note_value(node, steps_of(node, self._trace.tracer), value)
        return value

    def _as_constants(self, value: Any) -> Any:
        """Replace results computed from constants alone by constants of the trace."""
        if is_sequence(value):
            return type(value)(map(self._as_constants, value))
        return self._plain.lifted(value) if isinstance(value, torch.Tensor) else value

    def _key(
        self,
        tensor: torch.Tensor,
        tensors: list[_torch.FakeTensor],
        nodes: list[torch.fx.Node],
    ) -> Hashable:
        """Return the cache key of an operator call; collect its tensors and their nodes."""
        if type(tensor) is not _torch.FakeTensor:
            raise UnknownError
        node = self._trace.node_of(tensor)
        if node is None:
            raise UnknownError
        tensors.append(tensor)
        nodes.append(node)
        # Which arguments are the same tensor decides which nodes can be told apart.
        same = next(index for index, each in enumerate(tensors) if each is tensor)
        return layout_of(tensor), tensor.requires_grad, same, nodes.index(node)

    def _remembered(
        self,
        before: torch.fx.Node | None,
        inputs: list[torch.fx.Node],
        tensors: list[_torch.FakeTensor],
        result: Any,
    ) -> _Remembered | None:
        new_nodes = list(
            itertools.takewhile(lambda n: n is not before, reversed(self._trace.graph.nodes))
        )
        placeholders = {node: self._memory.placeholder(node.name) for node in inputs}
        copies = dict(placeholders)
        for node in reversed(new_nodes):
            reachable = all(each in copies for each in node.all_input_nodes)
            if node.op != "call_function" or not reachable:
                return None
            meta = {key: node.meta[key] for key in _META if key in node.meta}
            copies[node] = copied_node(self._memory, node, copies.__getitem__, meta)
        try:
            with _torch.without_torch_function_modes():
                results = self._template(result, tensors, copies, set())
        except UnknownError:
            return None
        returned = {id(each) for each in (result if is_sequence(result) else [result])}
        for tensor, node in zip(tensors, inputs, strict=True):
            if id(tensor) not in returned and self._trace.node_of(tensor) is not node:
                return None  # an argument has another node now, which no result shows
        nodes = [copies[node] for node in reversed(new_nodes)]
        return _Remembered(nodes, [placeholders[node] for node in inputs], results)

    def _template(
        self, result: Any, tensors: list[_torch.FakeTensor], copies: Copies, new: set[int]
    ) -> Any:
        """Return results as cache entries; ``new`` collects memory that no argument has."""
        if result is None:
            return None
        if is_sequence(result):
            return type(result)(self._template(each, tensors, copies, new) for each in result)
        node = self._trace.node_of(result) if type(result) is _torch.FakeTensor else None
        if node is None or node not in copies:
            raise UnknownError
        for index, tensor in enumerate(tensors):
            if tensor is result:
                return _Given(index, copies[node])
        if "val" not in node.meta:
            raise UnknownError
        storages = [_torch.memory_of(tensor) for tensor in tensors]
        storage = _torch.memory_of(result)
        shares = storages.index(storage) if storage in storages else None
        if shares is None and storage in new:
            raise UnknownError  # two results in the same memory
        new.add(storage)
        return _Made(node.meta["val"], copies[node], shares)

    def _again(
        self, remembered: _Remembered, nodes: list[torch.fx.Node], tensors: list[_torch.FakeTensor]
    ) -> Any:
        copies = dict(zip(remembered.inputs, nodes, strict=True))
        stack = self._stack()
        for node in remembered.nodes:
            copies[node] = copied = copied_node(self._trace.graph, node, copies.__getitem__)
            if stack:
                copied.meta["stack_trace"] = stack
        with _torch.without_torch_function_modes():
            return self._rebuilt(remembered.results, tensors, copies)

    def _rebuilt(self, result: Any, tensors: list[_torch.FakeTensor], copies: Copies) -> Any:
        if result is None:
            return None
        if is_sequence(result):
            return type(result)(self._rebuilt(each, tensors, copies) for each in result)
        if isinstance(result, _Given):
            tensor = tensors[result.index]
        else:
            made: _Made = result
            shared = None if made.shares is None else tensors[made.shares]
            tensor = _torch.laid_out_like(made.like, self._mode, shared)
        self._trace.stand_for(tensor, copies[result.node])
        return tensor


def _refuse_generator(function: OpOverload) -> None:
    """Refuse an operator that draws from the user's own random generator.

    A program cannot know whether forward seeds it in each call or goes on with it.
    """
    name = _torch.operator_name(function).split(".")[0].removeprefix("aten::")
    raise CaptureError(
        f"forward draws random numbers from a torch.Generator of its own, with {name} at "
        f"{user_line()}. A program draws from torch's own generator, which torch.manual_seed or "
        "options.randomSeed seeds. Leave generator out, or draw numbers that are the same in each "
        "call in __init__ and keep them with register_buffer."
    )


def _with_originals(value: Any, originals: dict[int, torch.Tensor]) -> Any:
    """Replace stand-ins in an operator's results by the user's own tensors."""
    if is_sequence(value):
        return type(value)(_with_originals(each, originals) for each in value)
    return originals.get(id(value), value)


def _state() -> tuple[torch.dtype, bool, bool]:
    """Return the global state of torch that an operator's result depends on."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    return torch.get_default_dtype(), torch.is_grad_enabled(), deterministic


aten = torch.ops.aten

_Tensor: Any = torch.Tensor  # its attributes have no types
_SETS_DATA = _Tensor.data.__set__
#: The operators that assign other memory to a tensor.
SET = aten.set_


@dataclasses.dataclass(frozen=True)
class Kept:
    """A traced tensor whose last value the program writes to a slot.

    Attributes:
        name: of the slot, as users know it.
        layout: shape and dtype of the slot.
    """

    name: str
    tensor: torch.Tensor
    slot: torch.fx.Node
    layout: tuple[torch.Size, torch.dtype]


class AssignedData(TorchFunctionMode):
    """A mode for ``tensor.data = value``: traced tensors then represent the new value."""

    def __init__(self, trace: _torch.Interception):
        super().__init__()
        self._trace = trace
        self._kept: list[Kept] = []
        self._lines: dict[int, str] = {}

    def keep(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Declare the traced tensors whose last value is written to their slots."""
        for name, tensor in tensors:
            node = self._trace.node_of(tensor)
            assert node is not None, name
            self._kept.append(Kept(name, tensor, node, (tensor.shape, tensor.dtype)))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == _SETS_DATA and isinstance(args[1], torch.Tensor):
            tensor, value = args
            self._assign(tensor, value.detach(), func)
            return None
        return func(*args, **(kwargs or {}))

    def set(
        self, function: OpOverload, args: Any, detached: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Trace ``set_``, the assignment of another tensor's memory.

        Args:
            function: the overload.
            args: its arguments.
            detached: traces a view of a whole tensor.

        Raises:
            CaptureError: its source is no tensor.
        """
        if function is not SET.source_Tensor:
            raise CaptureError(
                f"forward calls set_ with a storage or without a source, at {user_line()}. A "
                "program knows tensors, not storages. Call set_ with a tensor, such as a view of "
                "one, or write its values with copy_()."
            )
        self._assign(args[0], detached(args[1]), function)
        return args[0]

    def _assign(
        self, tensor: torch.Tensor, value: torch.Tensor, put: Callable[..., object]
    ) -> None:
        """Let a traced tensor represent a new value, whose memory ``put`` assigns."""
        line = user_line()
        node = self._trace.node_of(value)
        if not isinstance(tensor, _torch.FakeTensor) or self._trace.node_of(tensor) is None:
            raise CaptureError(
                f"forward assigns to the data of a tensor that it did not compute, at {line}. It "
                "is neither a parameter nor a buffer nor an input, so that the program has it as a "
                "constant. Use register_buffer in __init__, or write into it with copy_()."
            )
        if node is None:
            raise CaptureError(
                f"forward assigns data that are no value of the program, at {line}. Compute them "
                "from parameters, buffers and inputs, or pass them as an argument."
            )
        if scopes.are_moved():
            raise CaptureError(
                "forward assigns to the data of a tensor within a loop or branch of the program, "
                f"at {line}. Return the new value from the body, and assign it outside."
            )
        with (
            torch.no_grad(),
            _torch.outside_the_trace(),
            _torch.without_torch_function_modes(),
        ):
            put(tensor, value)
        self._trace.stand_for(tensor, node)
        self._lines[id(tensor)] = line

    def write_back(self) -> None:
        """Trace the copies of assigned tensors' last values into their slots.

        Raises:
            CaptureError: a value does not fit, or shares memory with another tensor.
        """
        assigned = [each for each in self._kept if id(each.tensor) in self._lines]
        with torch.no_grad():
            values = [self._value(each) for each in assigned]
            for each, value in zip(assigned, values, strict=True):
                _torch.tracked_fake(each.slot).copy_(value)

    def _value(self, kept: Kept) -> torch.Tensor:
        tensor, line = kept.tensor.detach(), self._lines[id(kept.tensor)]
        if (tensor.shape, tensor.dtype) != kept.layout:
            shape, dtype = kept.layout
            raise CaptureError(
                f"forward assigns data of shape {list(tensor.shape)} and {tensor.dtype} to "
                f"{kept.name}, at {line}, which has shape {list(shape)} and {dtype}. A program "
                "keeps the shapes and dtypes of its state."
            )
        memory = self._memory(tensor)
        others = [
            each.name
            for each in self._kept
            if each is not kept and self._memory(each.tensor) is memory
        ]
        if memory.op == "get_attr":
            others.append("a tensor that is neither a parameter nor a buffer")
        if others:
            raise CaptureError(
                f"forward assigns data to {kept.name}, at {line}, that lie in the memory of "
                f"{others[0]}: writes into one would change the other. Assign a clone(), or use "
                "copy_()."
            )
        # A slot's old value is read before any slot is written: parameters may change places.
        return tensor.clone() if memory.op == "placeholder" else tensor

    def _memory(self, tensor: torch.Tensor) -> torch.fx.Node:
        node = self._trace.node_of(tensor)
        assert node is not None
        return base(node)
