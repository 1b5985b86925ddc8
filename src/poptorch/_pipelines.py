"""Which models run as a pipeline, and its report.

Blocks on several devices under ``PipelinedExecution`` do: each change of the device along forward
begins a stage, and stages work at the same time. Everything that keeps a model from it is said.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch

from abele.capture import Captured
from abele.config import StepConfig
from abele.pipeline import Cut, PipelinedSession, Uncuttable, cut, report, workers
from abele.pipeline.assignment import STAGE
from abele.printing import node_phase
from abele.program import Program
from poptorch._error import error
from poptorch._logging import logger
from poptorch._placement import PlacementTable
from poptorch._tracing import BLOCK
from poptorch.options import Options, PipelinedExecution, ShardedExecution

#: Decides how pipelines run: ``workers``, ``sequential``, or unset for workers where there are
#: several cores.
ENVIRONMENT = "ABELE_PIPELINE"
_CHOICES = ("workers", "sequential")


@dataclasses.dataclass(frozen=True)
class Pipelining:
    """How a compiled model's stages run.

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
    """Whether a model with these options may have stages that overlap."""
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
    names = _mark(captured.programs[0], placement)
    found = _decided(captured, stages, options, config)
    if isinstance(found, str):
        logger.warning("A model of %d stages runs sequentially, because %s.", stages, found)
        return Pipelining(stages, None, found, names)
    return Pipelining(stages, found, "", names)


def _decided(captured: Captured, stages: int, options: Options, config: StepConfig) -> Cut | str:
    asked = os.environ.get(ENVIRONMENT, "")
    if asked and asked not in _CHOICES:
        raise error(
            f"{ENVIRONMENT}={asked!r} was found. Set it to one of {', '.join(_CHOICES)}, or leave "
            "it unset for workers where there are several cores."
        )
    if not may_pipeline(options, config):
        return f"its strategy is {options._execution_strategy!r}"
    if asked == "sequential":
        return f"{ENVIRONMENT}=sequential asks for it"
    if not asked and workers.cores() < 2:
        return f"this process may use one core only ({ENVIRONMENT}=workers insists)"
    try:
        return cut(captured.programs[0], stages, config)
    except Uncuttable as problem:
        return str(problem)


def _mark(program: Program, placement: PlacementTable) -> tuple[str, ...]:
    """Writes the stage on each operation and returns the blocks of each stage."""
    blocks: dict[int, dict[str, None]] = {}
    stage_of_block: dict[str, int] = {}
    for node, (block, stage) in placement.located(program).items():
        _write(node, stage)
        blocks.setdefault(stage, {})[block or "(before)"] = None
        stage_of_block[block] = max(stage, stage_of_block.get(block, 0))
    for node, block in _of_blocks(program):
        if block in stage_of_block:
            _write(node, stage_of_block[block])
    return tuple(" ".join(blocks[stage]) for stage in sorted(blocks))


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


@dataclasses.dataclass(frozen=True)
class PipelineReport:
    """What the latest call of a pipelined model took; ``print`` it.

    Attributes:
        measured: times and memory.
        state: bytes of each stage's state by kind.
        names: the blocks of each stage.
        threads: of torch, for each stage.
    """

    measured: report.Measured
    state: list[dict[str, int]]
    names: tuple[str, ...]
    threads: int

    def as_data(self) -> dict[str, Any]:
        """The same as JSON values: seconds, bytes, shares from 0 to 1."""
        found = self.measured
        return {
            "micro_batches": found.micro_batches,
            "passages": found.passages,
            "threads_per_stage": self.threads,
            "seconds": found.window_ns / 1e9,
            "bubble": found.bubble,
            "ideal_bubble": found.ideal_bubble,
            "stages_at_once": found.at_once,
            "stages": [
                {
                    "blocks": name,
                    "forward_seconds": stage.forward_ns / 1e9,
                    "backward_seconds": stage.backward_ns / 1e9,
                    "state_bytes": state,
                    "held_bytes": stage.held_bytes,
                    "held_micro_batches": stage.held_micro_batches,
                }
                for name, stage, state in zip(self.names, found.stages, self.state, strict=True)
            ],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The table: a head, then a row per stage; ms per micro-batch and KiB."""
        found = self.measured
        count = max(1, found.micro_batches * found.passages)
        lines = [("stage", "blocks", "forward ms", "backward ms", "state KiB", "held KiB", "held")]
        for index, (stage, state) in enumerate(zip(found.stages, self.state, strict=True)):
            lines.append(
                (
                    str(index),
                    self.names[index],
                    f"{stage.forward_ns / 1e6 / count:.3f}",
                    f"{stage.backward_ns / 1e6 / count:.3f}",
                    f"{sum(state.values()) / 1024:.1f}",
                    f"{stage.held_bytes / 1024:.1f}",
                    str(stage.held_micro_batches),
                )
            )
        return lines

    def sentence(self) -> str:
        """The bubble, measured and ideal."""
        found = self.measured
        return (
            f"{found.micro_batches} micro-batches, {self.threads} threads per stage; bubble "
            f"{found.bubble:.0%}, {found.ideal_bubble:.0%} with stages of equal speed; "
            f"{found.at_once:.2f} stages at work at a time."
        )

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                text.ljust(width) if column == 1 else text.rjust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join([*lines, self.sentence(), report.timeline(self.measured)])


def pipeline_report(found: Pipelining, session: Any) -> PipelineReport | None:
    """The report of a session's latest call; None before it and without a pipeline."""
    if not isinstance(session, PipelinedSession) or session.measured is None or found.cut is None:
        return None
    state = report.state_bytes(found.cut)
    return PipelineReport(session.measured, state, found.names, session.threads)


class PipelineMember:
    """What an executor tells about its pipeline."""

    @property
    def pipeline(self) -> PipelineReport | None:
        """Times, memory and bubble of the latest call's stages.

        An addition of this project. None before the first call, and for a model that does not run
        as a pipeline; then ``pipelining.reason`` says why.
        """
        compiled = getattr(self, "_compiled", None)
        if compiled is None:
            return None
        return pipeline_report(compiled.pipelining, compiled.session)

    @property
    def pipelining(self) -> Pipelining | None:
        """How the stages run, or why there are none; None before compiling.

        An addition of this project.
        """
        compiled = getattr(self, "_compiled", None)
        return None if compiled is None else compiled.pipelining
