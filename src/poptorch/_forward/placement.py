"""The placement of a captured model's operators, and its checks.

A placement changes no number. It decides the stages of a pipeline
(``poptorch._compiled.pipelines``); the rest are rules that programs are written to (how deep a
pipeline must be filled, how many devices there may be) and a table to look at.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch

from abele.program import Program, Role, is_getitem, writes
from abele.program.core import node_phase, user_line
from poptorch._error import error
from poptorch._forward.tracing import BLOCK
from poptorch._process.devices import count_ipus
from poptorch.options import Options, PipelinedExecution, ShardedExecution
from poptorch.options.execution import Placement

_BEFORE = Placement(block="", stage=0, phase=0, ipu=0)
# Bookkeeping that capture or torch adds; not an operator of the model.
_NO_OPERATORS = frozenset({torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.detach.default})


@dataclasses.dataclass
class PlacedBlock:
    """A row of the placement table: a block and its contents.

    Attributes:
        placement: name, stage, phase and device; the name is empty for what precedes all blocks.
        operators: operators of forward.
        parameter_bytes: of the parameters that this block is the first to use.
    """

    placement: Placement
    operators: int = 0
    parameter_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class PlacementTable:
    """Placement of a compiled model's blocks; ``print`` it.

    Attributes:
        rows: the blocks, in the order in which forward reached them.
        stages: stages of the forward pass, one more than the device changes along the way.
        ipus: devices of all replicas, as counted for the original's hardware.
    """

    rows: tuple[PlacedBlock, ...]
    stages: int
    ipus: int

    def located(self, program: Program) -> dict[torch.fx.Node, tuple[str, int]]:
        """Return the block and the stage of each operator of forward in a program."""
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
        cells = [
            (p.block or "(no block)", p.stage, p.phase, p.ipu, row.operators, row.parameter_bytes)
            for row in self.rows
            for p in (row.placement,)
        ]
        texts = [head, *(tuple(map(str, line)) for line in cells)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in texts
        ]
        return "\n".join([*lines, f"{self.stages} stages, {self.ipus} IPUs"])


def placed(programs: Sequence[Program], options: Options, *, training: bool) -> PlacementTable:
    """Read off where forward was placed, and check it.

    Args:
        programs: as captured; the first one holds forward.
        options: of the wrapper.
        training: whether a backward pass comes on top.

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
