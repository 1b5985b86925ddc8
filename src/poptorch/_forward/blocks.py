"""Blocks, named regions of a model, and their placement on devices by an execution strategy.

Blocks act while a model is captured and do nothing otherwise, so an annotated model still runs on
the host and keeps its parameter names. A placement changes no number. It decides the stages of a
pipeline (``poptorch._compiled.pipelines``); the rest are rules that programs are written to (how
deep a pipeline must be filled, how many devices there may be) and a table to look at.
"""

import builtins
import contextlib
import contextvars
import dataclasses
import itertools
import operator
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex

import torch

from abele import _torch
from abele.contexts import held
from abele.program import Program, Role, is_getitem, writes
from abele.program.core import node_phase, user_line
from abele.trace import scopes
from poptorch._error import error, require
from poptorch._logging import logger
from poptorch._wrapper.process import count_ipus
from poptorch.options import Options, PipelinedExecution, ShardedExecution
from poptorch.options.execution import Placement, _IExecutionStrategy

#: Mark of the operators of a block, a ``Placement`` as a tuple, so that programs with it can be
#: written to a file; after a block was left, its name.
BLOCK = "block"
#: Mark of operators whose activations are rematerialized together.
SEGMENT = "segment"

# What programs write into autoRecomputation to have every stage's activations computed again.
_RECOMPUTES_STAGES = (1, 3, 4)

_active: contextvars.ContextVar["Tracing | None"] = contextvars.ContextVar("tracing", default=None)


class Tracing:
    """The blocks that a captured forward enters, in order, and their placement by the strategy."""

    def __init__(self, options: Options):
        self.options = options
        self._next_name = 0
        self._scopes: list[Placement] = []
        #: The device passed to each block, by block name.
        self.devices: dict[str, int | None] = {}

    @property
    def strategy(self) -> _IExecutionStrategy:
        """The execution strategy of the model's options."""
        return self.options._execution_strategy

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Make this the current capture for block annotations, with block numbers from 0."""
        self.strategy._restart()
        self._next_name = 0
        self._scopes, self.devices = [], {}
        with held(_active, self):
            yield

    def restart_names(self) -> None:
        """Restart the names of unnamed blocks at ``0``."""
        self._next_name = 0

    def next_name(self) -> str:
        """Return the next name for an unnamed block: ``0``, ``1``, ..."""
        self._next_name += 1
        return str(self._next_name - 1)

    def keep_name(self, name: str) -> None:
        """Reserve the automatic block name of an earlier capture, so that it is not given twice."""
        self._next_name = max(self._next_name, int(name) + 1)

    def begin(self, name: str | None, ipu_id: int | None) -> Placement:
        """Begin a block for the operators that follow; an unnamed block gets the next free number.

        Raises:
            AssertionError: the strategy does not know the block, or where to put it.
            poptorch.Error: phases and devices that do not go together.
        """
        placed, marks = self.placed(self.next_name() if name is None else str(name), ipu_id)
        logger.debug("Starting block id=%s stage=%d phase=%d ipu=%d", *dataclasses.astuple(placed))
        for key, value in marks.items():
            scopes.mark(key, value)
        return placed

    def placed(self, name: str, ipu_id: int | None) -> tuple[Placement, dict[str, Any]]:
        """Return a block's placement by the execution strategy, and the marks for its operators."""
        placed = self.strategy.place(name, ipu_id)
        self.devices[name] = ipu_id
        marks: dict[str, Any] = {BLOCK: dataclasses.astuple(placed)}
        if self.options._Popart.options.get("autoRecomputation") in _RECOMPUTES_STAGES:
            marks[SEGMENT] = placed.stage
        return placed, marks

    def enter(self, name: str | None, ipu_id: int | None) -> None:
        """Enter a nested block, which lasts until ``leave``."""
        self._scopes.append(self.begin(name, ipu_id))

    def leave(self) -> None:
        """End the innermost entered block and continue the enclosing block, if any."""
        left = self._scopes.pop()
        logger.debug("Leaving block id=%s", left.block)
        around = self._scopes[-1] if self._scopes else None
        scopes.mark(BLOCK, dataclasses.astuple(around) if around else left.block)


# A capture waits for this thread: it may run what is compiled, but not compile.
_waited_for: contextvars.ContextVar[bool] = contextvars.ContextVar("waited_for", default=False)


def refuse_compiling_from_now_on() -> None:
    """Forbid compilation in this thread, because a capture waits for it."""
    _waited_for.set(True)


def refuse_compiling_inside_capture() -> None:
    """Raise poptorch.Error if this thread must not compile as a capture waits for it."""
    if _waited_for.get():
        raise error(
            "A poptorch.CPU called a wrapped model that is not compiled, while the model around it "
            "is captured. Compile the inner one before: wrapped.compile(...)."
        )


def current() -> Tracing | None:
    """Return the blocks of the forward being captured, or None outside of a capture."""
    return _active.get()


def refuse_nested_call() -> None:
    """Raise poptorch.Error if a wrapped model is called inside another one's captured forward."""
    if current() is not None:
        raise error(
            "A wrapped model was called inside the forward of another one. Call the plain module "
            "there (wrapped.model): it becomes part of the program that is being captured."
        )


# -- annotations -----------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A region of forward that an execution strategy places on a device, opened by ``with``.

    Operators after a block and before the next are an error when the model is compiled.

    Differs from the original: after a block inside another, operators belong to the outer one.

    Args:
        user_id: name for the execution strategy; by default ``0``, ``1``, ... at every entry.
        ipu_id: number of the device, from 0, unless the stage says otherwise.

    Raises:
        AssertionError: ``ipu_id`` is no such number.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None):
        super().__init__()
        self._user_id = user_id
        self._ipu_id = _number(ipu_id)

    @staticmethod
    def useAutoId() -> None:
        """Restart the automatic names of unnamed blocks at ``0``."""
        tracing = current()
        if tracing is not None:
            tracing.restart_names()

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until the next one; arguments are those of the class."""
        tracing = current()
        if tracing is not None:
            tracing.begin(user_id, _number(ipu_id))

    def __enter__(self) -> None:
        tracing = current()
        if tracing is not None:
            tracing.enter(self._user_id, self._ipu_id)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        tracing = current()
        if tracing is not None:
            tracing.leave()

    def extra_repr(self) -> str:
        """Return a block's name and device for the module's ``repr``."""
        return f"user_id={self._user_id}, ipu_id={self._ipu_id}"


class _Beginning:
    """The forward pre-hook that begins a block; an unnamed block is named at its first use."""

    def __init__(self, user_id: str | None, ipu_id: int | None):
        self._user_id, self._ipu_id = user_id, _number(ipu_id)
        self._named_here = False

    def begin(self) -> None:
        tracing = current()
        if tracing is None:
            return
        if self._user_id is None:
            self._user_id, self._named_here = tracing.next_name(), True
        elif self._named_here:
            tracing.keep_name(self._user_id)
        tracing.begin(self._user_id, self._ipu_id)

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        """Begin the block, as a forward pre-hook of a module."""
        self.begin()

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


class LegacyBeginBlockFn(torch.nn.Module):
    """A module that begins a block and then calls a function that is not a module.

    Args:
        layer_to_call: any callable.
        user_id: as for ``Block``.
        ipu_id: as for ``Block``.
    """

    def __init__(
        self, layer_to_call: Callable, user_id: str | None = None, ipu_id: int | None = None
    ):
        super().__init__()
        self._layer_to_call = layer_to_call
        self._beginning = _Beginning(user_id, ipu_id)

    @property
    def _user_id(self) -> str | None:
        """The block's name, which programs read to print their partition."""
        return self._beginning._user_id

    @property
    def _ipu_id(self) -> int | None:
        return self._beginning._ipu_id

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        """Begin the block and call the wrapped function."""
        self._beginning.begin()
        return self._layer_to_call(*input, **kwargs)

    def extra_repr(self) -> str:
        """Return the block and the wrapped function for the module's ``repr``."""
        return f"{self._beginning!r} {self._layer_to_call!r}"


def BeginBlock(
    layer_to_call: torch.nn.Module, user_id: str | None = None, ipu_id: int | None = None
) -> torch.nn.Module:
    """Begin a block whenever a module is called; it lasts until the next block begins.

    Args:
        layer_to_call: the module, which keeps its class and the names of its parameters.
        user_id: name for the execution strategy; by default one chosen at the first use.
        ipu_id: number of the device, unless the stage says otherwise.

    Returns:
        The same module; for a callable that is no module, a module that calls it.

    Raises:
        poptorch.Error: the module begins a block already, or cannot be called.
        AssertionError: ``ipu_id`` is no number of a device.
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if not callable(layer_to_call):
            raise error(
                "BeginBlock takes a module or a function, and this is not an instance of "
                f"torch.nn.Module: {layer_to_call!r}."
            )
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    present = [hook for _, hook in _hooks_of(layer_to_call)]
    if present:
        raise error(
            f"{type(layer_to_call).__name__} module has already been assigned to a block: "
            f"{present[0]!r}. Call poptorch.removeBlocks(module) first to assign it to another."
        )
    layer_to_call.register_forward_pre_hook(_Beginning(user_id, ipu_id))
    return layer_to_call


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable:
    """Return a decorator that runs each call of a function in a ``Block`` with these arguments."""

    def decorate(function: Callable) -> Callable:
        def in_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return in_block

    return decorate


def removeBlocks(module: torch.nn.Module) -> None:
    """Undo ``BeginBlock`` for a module and its submodules; AssertionError for other types."""
    require(
        isinstance(module, torch.nn.Module),
        f"removeBlocks takes a torch.nn.Module, not {module!r}",
    )
    for child in module.modules():
        for key, _ in _hooks_of(child):
            del _torch.forward_pre_hooks(child)[key]


@contextlib.contextmanager
def without_blocks(module: torch.nn.Module) -> Iterator[None]:
    """Remove the ``BeginBlock`` hooks of a module and its submodules inside the block."""
    before = [(child, dict(_hooks_of(child))) for child in module.modules()]
    removeBlocks(module)
    try:
        yield
    finally:
        removeBlocks(module)
        for child, hooks in before:
            _torch.forward_pre_hooks(child).update(hooks)


def _number(ipu_id: int | None) -> int | None:
    if ipu_id is None:
        return None
    right = isinstance(ipu_id, SupportsIndex) and operator.index(ipu_id) >= 0
    require(right, f"ipu_id is the number of a device, from 0, not {ipu_id!r}")
    return operator.index(ipu_id)


def _hooks_of(module: torch.nn.Module) -> list[tuple[int, _Beginning]]:
    hooks = _torch.forward_pre_hooks(module).items()
    return [(key, hook) for key, hook in hooks if isinstance(hook, _Beginning)]


# -- placement -------------------------------------------------------------------------------

_BEFORE = Placement(block="", stage=0, phase=0, ipu=0)
# Bookkeeping that capture or torch adds; not an operator of the model.
_NO_OPERATORS = frozenset({torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.detach.default})


@dataclasses.dataclass
class PlacedBlock:
    """A row of the placement table: a block with its operators and parameters.

    Attributes:
        placement: name, stage, phase and device; the name is empty for what precedes all blocks.
        operators: number of operators of forward.
        parameter_bytes: bytes of the parameters that this block is the first to use.
    """

    placement: Placement
    operators: int = 0
    parameter_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class PlacementTable:
    """A table of a compiled model's blocks with stage, phase and device; ``print`` it.

    Attributes:
        rows: the blocks, in the order in which forward reached them.
        stages: stages of the forward pass, one more than the device changes along the way.
        ipus: devices of all replicas, as counted for the original's hardware.
    """

    rows: tuple[PlacedBlock, ...]
    stages: int
    ipus: int

    def located(self, program: Program) -> dict[torch.fx.Node, tuple[str, int]]:
        """Return the block name and stage number of each forward operator of a program."""
        locations = {}
        stage, ipu = -1, None
        for node in _operators(program):
            placement = _placement_of(node)
            if placement.ipu != ipu:
                stage, ipu = stage + 1, placement.ipu
            locations[node] = (placement.block, stage)
        return locations

    def __str__(self) -> str:
        head = ("block", "stage", "phase", "ipu", "operators", "parameter bytes")
        texts: list[tuple[str, ...]] = [head]
        for row in self.rows:
            block, *numbers = dataclasses.astuple(row.placement)
            cells = (block or "(no block)", *numbers, row.operators, row.parameter_bytes)
            texts.append(tuple(map(str, cells)))
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in texts
        ]
        return "\n".join([*lines, f"{self.stages} stages, {self.ipus} IPUs"])


def placed(programs: Sequence[Program], options: Options, *, training: bool) -> PlacementTable:
    """Return the placement table of a captured forward, which is in the first of the programs.

    Raises:
        poptorch.Error: an operator outside all blocks, too few micro-batches for the pipeline, or a
            number of devices that the original could not provide.
    """
    rows: dict[str, PlacedBlock] = {}
    row_of: dict[torch.fx.Node, PlacedBlock] = {}
    ipus: list[int] = []
    for node in _operators(programs[0]):
        placement = _placement_of(node)
        row = rows.setdefault(placement.block, PlacedBlock(placement))
        row.operators += 1
        row_of[node] = row
        ipus.append(placement.ipu)
    _add_parameters(programs[0], row_of)
    stages = sum(1 for _ in itertools.groupby(ipus)) or 1
    _check_depth(stages, options, training=training)
    count = max(len(set(ipus)), max(ipus, default=0) + 1) * options.replication_factor
    return PlacementTable(tuple(rows.values()), stages, count_ipus(count, options))


def _operators(program: Program) -> Iterator[torch.fx.Node]:
    for node in program.graph.graph.nodes:
        if node.op != "call_function" or is_getitem(node) or writes(node):
            continue
        # What capture adds around the user's forward has no scope.
        in_forward = node_phase(node) == "forward" and "scope" in node.meta["custom"]
        if in_forward and node.target not in _NO_OPERATORS:
            yield node


def _placement_of(node: torch.fx.Node) -> Placement:
    mark = node.meta["custom"].get(BLOCK)
    if mark is None:
        return _BEFORE
    if isinstance(mark, tuple):
        return Placement(*mark)
    line = user_line(node.meta.get("stack_trace"))
    location = f" at {line[0]}:{line[1]}" if line else ""
    raise error(
        f"No active Block, all the ops must belong to a Block: {node.target}{location} comes "
        f"after block {mark!r} was left. Move it inside, or begin another block for it."
    )


def _add_parameters(program: Program, row_of: dict[torch.fx.Node, PlacedBlock]) -> None:
    for node, slot in zip(program.placeholders(), program.inputs, strict=True):
        first = next((user for user in node.users if user in row_of), None)
        if slot.role is Role.PARAMETER and first is not None:
            value = node.meta["val"]
            row_of[first].parameter_bytes += value.numel() * value.element_size()


def _check_depth(stages: int, options: Options, *, training: bool) -> None:
    strategy = options._execution_strategy
    if not isinstance(strategy, PipelinedExecution) or isinstance(strategy, ShardedExecution):
        return
    depth = 2 * stages - 1 if training else stages
    name = "Training.gradientAccumulation" if training else "deviceIterations"
    micro_batches = options.device_iterations
    if training:
        micro_batches = options.Training.gradient_accumulation
    if micro_batches >= depth:
        return
    more = (
        f" Please note that a model with {stages} pipeline stages has an additional {stages - 1} "
        "stages when training."
        if training
        else ""
    )
    raise error(
        f"poptorch.Options().{name} must be greater than or equal to the number of pipeline stages "
        f"({depth}) when using poptorch.PipelinedExecution, and it is {micro_batches}.{more}"
    )


# -- text ------------------------------------------------------------------------------------


def module_repr(m: torch.nn.Module) -> str:
    """Return the ``repr`` of a module, with its forward pre-hooks such as ``BeginBlock``.

    Args:
        m: a module, such as one annotated by ``BeginBlock``.

    Raises:
        AssertionError: it is not a module.
    """
    require(isinstance(m, torch.nn.Module), f"module_repr takes a torch.nn.Module, not {m!r}")
    hooks = "".join(f"{hook!r} " for hook in _torch.forward_pre_hooks(m).values())
    extra = m.extra_repr()
    children = [
        f"({name}): {_indented(module_repr(child)) if child is not None else None}"
        for name, child in _torch.children_by_name(m).items()
    ]
    if children or "\n" in extra:
        lines = [*(extra.split("\n") if extra else []), *children]
        inside = "".join(f"\n  {line}" for line in lines) + "\n"
    else:
        inside = extra
    return f"{hooks}{type(m).__name__}({inside})"


def _indented(text: str) -> str:
    first, separator, rest = text.partition("\n")
    return first + separator + textwrap.indent(rest, "  ")


def print(m: Any) -> None:
    """Print a module with its ``BeginBlock`` annotations, then its plain ``repr``."""
    if isinstance(m, torch.nn.Module):
        builtins.print(module_repr(m))
    builtins.print(m)
