"""Selection of models that run as a pipeline of stages, and the pipeline report.

Models with blocks on several devices under ``PipelinedExecution`` do: each change of the device
along forward begins a stage, and stages work at the same time. The log and the report name the
reason if a model does not.
"""

import dataclasses
import os
from typing import Any

import torch

from abele import processor
from abele.capture import Captured
from abele.pipeline import Cut, Uncuttable, cut
from abele.pipeline.cut import STAGE
from abele.pipeline.runner import Measured, state_bytes, timeline
from abele.program import Program
from abele.program.core import node_phase
from abele.report.words import aligned
from abele.report.words import count as counted
from abele.step.config import StepConfig
from poptorch._error import error
from poptorch._forward.blocks import BLOCK, PlacementTable
from poptorch._logging import logger
from poptorch.options import Options, PipelinedExecution, ShardedExecution

#: Decides how pipelines run: ``workers``, ``sequential``, or unset for workers where there are
#: several cores.
ENVIRONMENT = "ABELE_PIPELINE"
_CHOICES = ("workers", "sequential")
# Columns of the table of a pipeline's stages; times are ms per micro-batch.
_HEAD = ("stage", "blocks", "forward ms", "backward ms", "state KiB", "held KiB", "held")


@dataclasses.dataclass(frozen=True)
class Pipelining:
    """The pipeline stages of a compiled model, or the reason why it runs as one program.

    Attributes:
        stages: number of stages of the forward pass.
        cut: the model's program divided into stages, if it runs as a pipeline.
        reason: why it runs as one program, if it does.
        names: the blocks of each stage.
    """

    stages: int = 1
    cut: Cut | None = None
    reason: str = "there is one stage"
    names: tuple[str, ...] = ()


def may_pipeline(options: Options, config: StepConfig) -> bool:
    """Return whether a model with these options may run as a pipeline of overlapping stages."""
    strategy = options._execution_strategy
    pipelined = isinstance(strategy, PipelinedExecution)
    if not pipelined or isinstance(strategy, ShardedExecution):
        return False
    # Two stages need three micro-batches in training, two without backward.
    return config.gradient_accumulation > 2 if config.training else config.device_iterations > 1


def pipelining(
    captured: Captured, placement: PlacementTable, options: Options, config: StepConfig
) -> Pipelining:
    """Decide whether a captured model runs as a pipeline; log the reason if its stages cannot.

    Operations of the first program are labelled with their stages.

    Raises:
        poptorch.Error: the environment variable for pipelines has an unknown value.
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
    """Label each operation of a program with its pipeline stage; return the stages' names."""
    blocks: dict[int, dict[str, None]] = {}
    stage_of_block: dict[str, int] = {}
    for node, (block, stage) in placement.located(program).items():
        _write(node, stage)
        blocks.setdefault(stage, {})[block] = None
        stage_of_block[block] = max(stage, stage_of_block.get(block, 0))
    for node in program.graph.graph.nodes:
        custom = node.meta.get("custom") or {}
        if node_phase(node) == "backward" and "of_scope" in custom:
            forward = custom.get(f"of_{BLOCK}")  # the block of the forward operation
            block = forward[0] if isinstance(forward, tuple) else forward or ""
            if block in stage_of_block:
                _write(node, stage_of_block[block])
    return tuple(_named(list(blocks[stage])) for stage in sorted(blocks))


def _named(blocks: list[str]) -> str:
    """Return a pipeline stage's name, its block names joined by spaces."""
    return " ".join(filter(None, blocks)) or "before the first block"


def _write(node: torch.fx.Node, stage: int) -> None:
    # A dictionary of its own: nodes that were traced together may share one.
    node.meta["custom"] = {**(node.meta.get("custom") or {}), STAGE: stage}


# -- report ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PipelineReport:
    """The pipeline stages of a compiled model and the times of the latest call; ``print`` it.

    Attributes:
        pipelining: the stages, or why there are none.
        threads: torch's threads for each stage.
        measured: times and memory; None before the first call.
    """

    pipelining: Pipelining
    threads: int = 0
    measured: Measured | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the pipeline report as JSON values: seconds, bytes, shares from 0 to 1."""
        measured, cut = self.measured, self.pipelining.cut
        if cut is None:
            return {"stages": [], "sequential": self.pipelining.reason}
        stages: list[dict[str, Any]] = [
            {"blocks": name, "state_bytes": state}
            for name, state in zip(self.pipelining.names, state_bytes(cut), strict=True)
        ]
        data = {"stages": stages, "threads_per_stage": self.threads}
        if measured is None:
            return data
        for stage, times in zip(stages, measured.stages, strict=True):
            stage["forward_seconds"] = times.forward_ns / 1e9
            stage["backward_seconds"] = times.backward_ns / 1e9
            stage["held_bytes"] = times.held_bytes
            stage["held_micro_batches"] = times.held_micro_batches
        return data | {
            "micro_batches": measured.micro_batches,
            "passages": measured.passages,
            "seconds": measured.window_ns / 1e9,
            "bubble": measured.bubble,
            "ideal_bubble": measured.ideal_bubble,
            "stages_at_once": measured.at_once,
        }

    def sentence(self) -> str:
        """Describe the pipeline's measured and ideal bubble, or why there is no pipeline."""
        measured = self.measured
        if self.pipelining.cut is None:
            return f"It runs as one program, because {self.pipelining.reason}."
        if measured is None:
            return f"Threads per stage: {self.threads}. Times come with the first call."
        threads = counted(self.threads, "thread")
        return (
            f"{measured.micro_batches} micro-batches, {threads} per stage. Bubble "
            f"{measured.bubble:.0%}; {measured.ideal_bubble:.0%} if all stages were equally fast. "
            f"On average {measured.at_once:.2f} stages worked at the same time."
        )

    def __str__(self) -> str:
        measured, cut = self.measured, self.pipelining.cut
        if cut is None:
            return self.sentence()
        rows: list[tuple[str, ...]] = [_HEAD]
        for index, (name, state) in enumerate(
            zip(self.pipelining.names, state_bytes(cut), strict=True)
        ):
            forward = backward = held = batches = ""
            if measured is not None:
                stage, count = measured.stages[index], measured.micro_batches * measured.passages
                forward = f"{stage.forward_ns / 1e6 / count:.3f}"
                backward = f"{stage.backward_ns / 1e6 / count:.3f}"
                held, batches = f"{stage.held_bytes / 1024:.1f}", str(stage.held_micro_batches)
            kib = f"{sum(state.values()) / 1024:.1f}"
            rows.append((str(index), name, forward, backward, kib, held, batches))
        drawn = [] if measured is None else [timeline(measured)]
        return "\n".join([*aligned(rows, left=[1]), self.sentence(), *drawn])
