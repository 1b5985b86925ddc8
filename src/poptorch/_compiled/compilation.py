"""From a model's forward to an executable: capture, place, cut, build."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from abele.capture import Captured
from abele.compile.build import BuildRecord, build
from abele.compile.cache import ExecutableCache
from abele.compile.executable import Announce, Executable
from abele.compile.start import Start
from abele.program import Program
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.targets import Target
from abele.targets.base import COMPILED
from poptorch import profiling
from poptorch._compiled import hooks
from poptorch._compiled.forward import Forward, Traced
from poptorch._compiled.pipelines import Pipelining, pipelining
from poptorch._compiled.progress import CompilationProgress
from poptorch._forward import structure
from poptorch._forward.blocks import PlacementTable, placed
from poptorch._logging import logger
from poptorch._process import distributed
from poptorch.options import Options

_warned_of_own_builds = False


class Origin(Protocol):
    """Source of a compiled model: the module, or a file."""

    def traced(self, trace: Callable[[], Traced]) -> Traced:
        """Return the captured programs.

        Args:
            trace: captures the module.
        """
        ...

    def built(
        self, programs: Sequence[Program], config: StepConfig, *, in_stages: bool, **settings: Any
    ) -> tuple[Executable, BuildRecord]:
        """Return a session that runs the programs.

        Args:
            programs: the captured ones, or the parts of a pipeline.
            config: how a call consumes its batch.
            in_stages: they are parts of a pipeline.
            settings: see ``abele.build``.
        """
        ...


class FromModule:
    """The module is captured and its programs are built; an ``Origin``.

    Args:
        start: how the first calls run.
        announce: told in words when other programs run.
    """

    def __init__(self, start: Start, announce: Announce):
        self._start, self._announce = start, announce

    def traced(self, trace: Callable[[], Traced]) -> Traced:
        """Return the captured programs."""
        return trace()

    def built(
        self, programs: Sequence[Program], config: StepConfig, *, in_stages: bool, **settings: Any
    ) -> tuple[Executable, BuildRecord]:
        """Build the executable; pipeline stages start compiled."""
        start = Start.WAIT if in_stages else self._start
        return build(programs, config, start=start, announce=self._announce, **settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compilation:
    """Result of compiling a model.

    Attributes:
        captured: the programs before any pass.
        outputs: the structure of forward's results.
        placement: which block each operator belongs to.
        pipelining: the stages, or why there are none.
        executable: what runs.
        record: how it was made.
    """

    captured: Captured
    outputs: structure.Structure
    placement: PlacementTable
    pipelining: Pipelining
    executable: Executable
    record: BuildRecord


def compilation(
    forward: Forward,
    examples: list[torch.Tensor],
    config: StepConfig,
    rule: UpdateRule | None,
    origin: Origin,
    *,
    target: Target | None,
    progress: CompilationProgress,
) -> Compilation:
    """Compiles a model.

    Args:
        forward: of the model.
        examples: the inputs of one micro-batch.
        config: how a call consumes its batch.
        rule: the optimizer, for training.
        origin: where programs and executable come from.
        target: the target to use instead of choosing one.
        progress: is told of every stage.
    """
    options = forward.tracing.options
    progress.on_stage("capture", 0.01)
    started = time.perf_counter()
    event = profiling.channel_of(config.training).tracepoint("graphPreprocessing")
    with hooks.around_capture(), event:
        traced = origin.traced(lambda: forward.trace(examples))
    captured = traced.captured
    placement = placed(captured.programs, options, training=config.training)
    stages = pipelining(captured, placement, options, config)
    captured_s = time.perf_counter() - started
    distributed.agree(captured, config, rule, examples)
    executable, record = origin.built(
        _programs(captured, stages),
        config,
        in_stages=stages.cut is not None,
        target=target,
        cache=_cache(options),
        log_folder=options.log_dir,
        progress=progress.on_stage,
        gather=distributed.gather_of(config),
    )
    record.seconds["capture"] = captured_s
    _warn_of_own_builds(options, record)
    return Compilation(
        captured=captured,
        outputs=traced.outputs,
        placement=placement,
        pipelining=stages,
        executable=executable,
        record=record,
    )


def _programs(captured: Captured, stages: Pipelining) -> tuple[Program, ...]:
    """Return the programs to build: the captured ones, or those of the stages."""
    if stages.cut is None:
        return captured.programs
    return (*stages.cut.programs, *captured.programs[1:])


def _cache(options: Options) -> ExecutableCache | None:
    path = options._Popart.options.get("cachePath")
    enabled = options._Popart.options.get("enableEngineCaching")
    if path and enabled:
        return ExecutableCache(path)
    return None


def _warn_of_own_builds(options: Options, record: BuildRecord) -> None:
    """Say once per process that each process compiles, where any of them does."""
    global _warned_of_own_builds
    place = options.Distributed
    alone = place.numProcesses == 1 or place.processId > 0
    running = record.running
    compiles = running.manner == COMPILED and running.start is not Start.INTERPRET
    if compiles and not alone and _cache(options) is None and not _warned_of_own_builds:
        _warned_of_own_builds = True
        logger.warning(
            "%d processes compile the same model, each for itself. Call "
            "options.enableExecutableCaching(folder) or set POPTORCH_CACHE_DIR to let one compile "
            "for all.",
            place.numProcesses,
        )
