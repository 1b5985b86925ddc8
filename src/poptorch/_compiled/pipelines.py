"""Selection of models that run as a pipeline, and the pipeline's report.

Blocks on several devices under ``PipelinedExecution`` do: each change of the device along forward
begins a stage, and stages work at the same time. Everything that keeps a model from it is said.
"""

import dataclasses
import os
from collections.abc import Iterator

import torch

from abele import processor
from abele.capture import Captured
from abele.pipeline import Cut, Uncuttable, cut
from abele.pipeline.cut import STAGE
from abele.program import Program
from abele.program.core import node_phase
from abele.step.config import StepConfig
from poptorch._error import error
from poptorch._forward.blocks import BLOCK, PlacementTable
from poptorch._logging import logger
from poptorch.options import Options, PipelinedExecution, ShardedExecution

#: Decides how pipelines run: ``workers``, ``sequential``, or unset for workers where there are
#: several cores.
ENVIRONMENT = "ABELE_PIPELINE"
_CHOICES = ("workers", "sequential")


@dataclasses.dataclass(frozen=True)
class Pipelining:
    """Execution of a compiled model's stages.

    Attributes:
        stages: of the forward pass.
        cut: the model's program in parts, if it runs as a pipeline.
        reason: why it runs as one program, if it does.
        names: the blocks of each stage.
    """

    stages: int = 1
    cut: Cut | None = None
    reason: str = "there is one stage"
    names: tuple[str, ...] = ()


def may_pipeline(options: Options, config: StepConfig) -> bool:
    """Return whether a model with these options may have overlapping stages."""
    strategy = options._execution_strategy
    pipelined = isinstance(strategy, PipelinedExecution)
    if not pipelined or isinstance(strategy, ShardedExecution):
        return False
    # Two stages need three micro-batches in training, two without backward.
    return config.gradient_accumulation > 2 if config.training else config.device_iterations > 1


def pipelining(
    captured: Captured, placement: PlacementTable, options: Options, config: StepConfig
) -> Pipelining:
    """Decides how a captured model runs, and logs why not as a pipeline if it has stages.

    Args:
        captured: the programs; the operations of the first get marks.
        placement: where its operators were placed.
        options: of the wrapper.
        config: of its calls.

    Raises:
        poptorch.Error: the environment asks for something that does not exist.
    """
    stages = placement.stages
    if stages < 2:
        return Pipelining()
    if not may_pipeline(options, config):
        return Pipelining(stages, None, f"its strategy is {options._execution_strategy!r}")
    names = mark(captured.programs[0], placement)
    decision = _decided(captured, stages, config)
    if isinstance(decision, str):
        logger.warning("A model of %d stages runs sequentially, because %s.", stages, decision)
        return Pipelining(stages, None, decision, names)
    return Pipelining(stages, decision, "", names)


def _decided(captured: Captured, stages: int, config: StepConfig) -> Cut | str:
    choice = os.environ.get(ENVIRONMENT, "")
    if choice and choice not in _CHOICES:
        raise error(
            f"{ENVIRONMENT}={choice!r} was found. Set it to one of {', '.join(_CHOICES)}, or leave "
            "it unset for workers where there are several cores."
        )
    if choice == "sequential":
        return f"{ENVIRONMENT}=sequential asks for it"
    if not choice and processor.cores() < 2:
        return f"this process may use one core only ({ENVIRONMENT}=workers insists)"
    try:
        return cut(captured.programs[0], stages, config)
    except Uncuttable as problem:
        return str(problem)


def mark(program: Program, placement: PlacementTable) -> tuple[str, ...]:
    """Label each operation with its stage; return the blocks of each stage."""
    blocks: dict[int, dict[str, None]] = {}
    stage_of_block: dict[str, int] = {}
    for node, (block, stage) in placement.located(program).items():
        _write(node, stage)
        blocks.setdefault(stage, {})[block] = None
        stage_of_block[block] = max(stage, stage_of_block.get(block, 0))
    for node, block in _of_blocks(program):
        if block in stage_of_block:
            _write(node, stage_of_block[block])
    return tuple(_named(list(blocks[stage])) for stage in sorted(blocks))


def _named(blocks: list[str]) -> str:
    """Return the name of a stage by its blocks; the part before all blocks has none."""
    return " ".join(filter(None, blocks)) or "before the first block"


def _write(node: torch.fx.Node, stage: int) -> None:
    # A dictionary of its own: nodes that were traced together may share one.
    node.meta["custom"] = {**(node.meta.get("custom") or {}), STAGE: stage}


def _of_blocks(program: Program) -> Iterator[tuple[torch.fx.Node, str]]:
    """Operations of backward with the block of the operation of forward that they belong to."""
    for node in program.graph.graph.nodes:
        custom = node.meta.get("custom") or {}
        if node_phase(node) == "backward" and "of_scope" in custom:
            mark = custom.get(f"of_{BLOCK}")
            yield node, mark[0] if isinstance(mark, tuple) else mark or ""
