"""Execution strategies: placement of a model's named blocks in stages and phases.

Numbers never depend on the strategy. What programs can see is here: the constructors with their
checks, and the placement of each block. Which models run as a pipeline,
``poptorch._wrapper.pipelines`` decides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from poptorch._error import error, require
from poptorch.enums import AutoStage, Liveness


@dataclass(frozen=True)
class Placement:
    """The stage, phase and device on which a strategy places a block."""

    block: str
    stage: int
    phase: int
    ipu: int


@dataclass(init=False, repr=False)
class Stage:
    """A pipeline stage: blocks that run one after the other on one device.

    Args:
        *block_ids: Names of the blocks.
    """

    _blocks: list[str]
    _ipu_id: int | None

    def __init__(self, *block_ids: str) -> None:
        for name in block_ids:
            require(isinstance(name, str), f"A Stage takes names of blocks, not {name!r}")
        self._blocks = list(block_ids)
        self._ipu_id = None

    @property
    def blocks(self) -> list[str]:
        """The names of the blocks that run in this stage."""
        return self._blocks

    def ipu(self, ipu: int) -> Self:
        """Set the device number of a stage, overriding the device numbers of its blocks."""
        require(isinstance(ipu, int), f"ipu takes the number of a device, not {ipu!r}")
        self._ipu_id = ipu
        return self

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._blocks))
        return f"Stage({names})" + ("" if self._ipu_id is None else f".ipu({self._ipu_id})")


@dataclass(init=False, repr=False)
class Phase:
    """An execution phase: stages that may run at the same time.

    Args:
        *arg: Stages, or names of blocks which together make one stage.
    """

    stages: list[Stage]

    def __init__(self, *arg: Stage | str) -> None:
        items = arg[0] if len(arg) == 1 and isinstance(arg[0], list | tuple) else arg
        names = [item for item in items if isinstance(item, str)]
        stages = [item for item in items if isinstance(item, Stage)]
        require(
            len(items) in (len(names), len(stages)),
            f"A Phase takes either Stages or names of blocks, not {items!r}",
        )
        self.stages = [Stage(*names)] if names else stages

    def stage(self, idx: int) -> Stage:
        """Return a stage of this phase by its index, from 0."""
        return _at(self.stages, idx, "stage")

    def ipus(self, *ipus: int) -> Self:
        """Set the device numbers of all stages of this phase, one for each."""
        require(
            len(ipus) == len(self.stages),
            f"ipus needs one number for each of the {len(self.stages)} stages, not {ipus!r}",
        )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)
        return self

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"


class _IExecutionStrategy:
    """The base class of execution strategies, which place blocks in stages on devices."""

    def stage(self, block_id: str) -> Stage:
        """Return the stage that contains a block, by the block's name."""
        return self._find("block", block_id)[2]

    def place(self, block_id: str, ipu_id: int | None = None) -> Placement:
        """Return a block's stage, phase and device; ``ipu_id`` is the device set at the block."""
        phase, number, stage = self._find("Block", block_id)
        requested = ipu_id if stage._ipu_id is None else stage._ipu_id
        ipu = self._default_ipu(phase, number) if requested is None else requested
        return Placement(block_id, number, phase, ipu)

    def backendOptions(self) -> dict[str, int | bool]:
        """Return the entries of this execution strategy in `Options.toDict`."""
        raise NotImplementedError

    def _restart(self) -> None:
        """Clear the block placements of an earlier compilation."""

    def _listed(self) -> Iterator[tuple[int, int, Stage]]:
        """Yield the phase number, stage number and stage of each listed stage."""
        raise NotImplementedError

    def _default_ipu(self, phase: int, stage: int) -> int:
        return stage

    def _find(self, kind: str, block_id: str) -> tuple[int, int, Stage]:
        for entry in self._listed():
            if block_id in entry[2].blocks:
                return entry
        names = (name for _, _, stage in self._listed() for name in stage.blocks)
        # Programs match on these words, with a small b where a stage is looked up by hand.
        raise AssertionError(
            f"Unknown {kind} {block_id!r} list of expected Blocks: {', '.join(names)}"
        )

    def _refuse_repeats(self) -> None:
        seen: set[str] = set()
        for _, _, stage in self._listed():
            for name in sorted(set(stage.blocks) & seen):
                raise AssertionError(f"Block {name!r} is associated with more than one stage")
            seen.update(stage.blocks)


@dataclass(init=False, repr=False)
class PipelinedExecution(_IExecutionStrategy):
    """The execution strategy of pipelining: stages work on successive micro-batches in parallel.

    Args:
        *args: One entry per stage (a name of a block, a Stage, or a sequence of names), or a
            single AutoStage; nothing means AutoStage.SameAsIpu.
    """

    _stages: list[Stage]
    _auto: AutoStage | None
    # Filled as blocks are entered, so no part of what the user asked for.
    _numbers: dict[str, int] = field(compare=False)

    def __init__(self, *args: str | Stage | Sequence[str] | AutoStage) -> None:
        self._auto = AutoStage.SameAsIpu if not args else None
        self._numbers = {}
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self._auto, args = args[0], ()
        self._stages = [_as_stage(arg) for arg in args]
        self._refuse_repeats()

    def place(self, block_id: str, ipu_id: int | None = None) -> Placement:
        """Return a block's stage and device, opening a stage for it if no stages are listed."""
        if self._auto is None:
            return super().place(block_id, ipu_id)
        if self._auto == AutoStage.SameAsIpu:
            if ipu_id is None:
                raise AssertionError(
                    f"AutoStage.SameAsIpu: no IPU was specified for Block {block_id!r}; "
                    "give it an ipu_id"
                )
            return Placement(block_id, ipu_id, 0, ipu_id)
        number = self._numbers.setdefault(block_id, len(self._numbers) + 1)
        return Placement(block_id, number, 0, number if ipu_id is None else ipu_id)

    def backendOptions(self) -> dict[str, int | bool]:
        """Return the entries of pipelined execution in `Options.toDict`."""
        return {"execution_mode": 0}

    def _restart(self) -> None:
        self._numbers.clear()

    def _listed(self) -> Iterator[tuple[int, int, Stage]]:
        return ((0, number, stage) for number, stage in enumerate(self._stages))

    def __repr__(self) -> str:
        if self._auto is None:
            inside = ", ".join(map(repr, self._stages))
        else:
            inside = f"AutoStage.{self._auto.name}"
        return f"{type(self).__name__}({inside})"


class ShardedExecution(PipelinedExecution):
    """The execution strategy of sharding: stages run in sequence, without pipelining."""

    def backendOptions(self) -> dict[str, int | bool]:
        """Return the entries of sharded execution in `Options.toDict`."""
        return {"execution_mode": 1}


@dataclass(init=False, repr=False)
class _IPhasedExecution(_IExecutionStrategy):
    """The base class of phased execution strategies, whose phases run one after the other.

    Args:
        *phases: For each phase a Phase, a list of Stages, a list of block names (a stage each),
            or one block name.
    """

    _phases: list[Phase]
    _separate_backward_phase: bool
    _liveness: Liveness

    def __init__(self, *phases: Phase | Sequence[Stage] | Sequence[str] | str) -> None:
        # The list of all phases may also come as the only argument.
        entries: Sequence[object] = phases
        if len(phases) == 1 and isinstance(phases[0], list | tuple):
            inner: Sequence[object] = phases[0]
            if all(isinstance(entry, Phase | list | tuple) for entry in inner):
                entries = inner
        require(
            bool(entries),
            f"{type(self).__name__} has no AutoStage: list its phases, "
            f'as in {type(self).__name__}("first", "second")',
        )
        self._phases = [_as_phase(entry) for entry in entries]
        self._separate_backward_phase = False
        self._liveness = Liveness.AlwaysLive
        self._refuse_repeats()

    def phase(self, phase: int) -> Phase:
        """Return an execution phase by its index, from 0."""
        return _at(self._phases, phase, "phase")

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Choose whether the backward pass has phases of its own."""
        self._separate_backward_phase = use
        return self

    def backendOptions(self) -> dict[str, int | bool]:
        """Return the entries of phased execution in `Options.toDict`."""
        return {
            "execution_mode": 2,
            "separate_backward_phase": self._separate_backward_phase,
            "serial_phases_execution": isinstance(self, SerialPhasedExecution),
            "tensors_liveness": self._liveness.value,
        }

    def _listed(self) -> Iterator[tuple[int, int, Stage]]:
        for index, phase in enumerate(self._phases):
            for number, stage in enumerate(phase.stages):
                yield index, number, stage

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(map(repr, self._phases))}, "
            f"separate_backward_phase={self._separate_backward_phase}, "
            f"tensors_liveness={self._liveness.name})"
        )


class SerialPhasedExecution(_IPhasedExecution):
    """The execution strategy whose phases all run on the same devices."""

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Set how long tensors stay in device memory; no effect here."""
        require(isinstance(liveness, Liveness), f"Liveness needed, not {liveness!r}")
        self._liveness = liveness
        return self


class ParallelPhasedExecution(_IPhasedExecution):
    """The execution strategy whose phases alternate between even and odd devices."""

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Move activations off the chip after the forward pass; no effect here."""
        require(isinstance(off_chip, bool), f"off_chip takes a bool, not {off_chip!r}")
        self._liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self

    def place(self, block_id: str, ipu_id: int | None = None) -> Placement:
        """Return a block's stage, phase and device; phase and device must both be even or odd.

        Raises:
            poptorch.Error: An even phase is on an odd device, or an odd one on an even device.
        """
        placement = super().place(block_id, ipu_id)
        if placement.phase % 2 != placement.ipu % 2:
            raise error(
                "In a ParallelPhasedExecution even phases must run on even IPUs and odd phases on "
                f"odd IPUs: block {block_id!r} of phase {placement.phase} is on {placement.ipu}"
            )
        return placement

    def _default_ipu(self, phase: int, stage: int) -> int:
        return 2 * stage + phase % 2


def _as_stage(entry: object) -> Stage:
    if isinstance(entry, Stage):
        return entry
    if isinstance(entry, str):
        return Stage(entry)
    if isinstance(entry, list | tuple):
        return Stage(*entry)
    raise AssertionError(
        f"A stage is a block name, a Stage or a sequence of block names, not {entry!r}"
    )


def _as_phase(entry: object) -> Phase:
    if isinstance(entry, Phase):
        return entry
    if isinstance(entry, list | tuple):
        return Phase(*map(_as_stage, entry))
    return Phase(_as_stage(entry))


def _at(items: list, index: int, kind: str):
    require(
        isinstance(index, int) and 0 <= index < len(items),
        f"There is no {kind} {index!r}: they are numbered from 0 to {len(items) - 1}",
    )
    return items[index]
