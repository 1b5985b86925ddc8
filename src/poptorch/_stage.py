"""Division of a wrapped model into stages: planned, measured, printed and applied as blocks."""

import contextlib
import dataclasses
import keyword
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.fit import Interval, Limit, Verdict
from abele.fit.ladder import Change, NotOffered, Stays, Ways
from abele.fit.questions import Say, silent
from abele.pipeline import PipelineRunner
from abele.stage import Device, Plan, Span, divided, memory, partition, read, text
from abele.stage.chain import Chain, Times
from abele.stage.reading import Begin, recorded
from poptorch._error import error
from poptorch._fit import (
    Report,
    Trial,
    halved,
    micro_batch_option,
    recomputed,
    smaller_micro_batches,
)
from poptorch._forward.blocks import BLOCK, BeginBlock, removeBlocks, without_blocks
from poptorch._wrapper.compiled import CompiledModel
from poptorch._wrapper.pipelines import mark
from poptorch.options import (
    Options,
    PipelinedExecution,
    ShardedExecution,
    TensorLocationSettings,
)

# autoRecomputation, by the original's numbers; unset it is 3 if there are several stages.
_NOTHING_AGAIN, _STAGES_AGAIN = (0, 2), (1, 3, 4)
#: Compiling stages takes long, and the second division is mostly the last.
_ROUNDS = 3
_CALLS = 3
#: Numbers of IPUs to try; published programs use at most 16 for one replica.
_DEVICES = (2, 4, 8, 16)
_AWAY = "poptorch.TensorLocationSettings().useOnChipStorage(False)"

_BAND = (
    "Code and exchange are a stated band, not measured; the estimate has not been compared with "
    "an IPU."
)


# -- blocks ----------------------------------------------------------------------------------------


def lines(plan: Plan, model: torch.nn.Module) -> list[str]:
    """Return the lines of Python for the stages of a plan, with the model called ``model``.

    No line reduces the number of micro-batches, since the batch of a call depends on it.
    """
    begins = [
        f'poptorch.BeginBlock({expression(model, path)}, "{name}", ipu_id={home})'
        for path, name, home in _begins(plan)
    ]
    devices = max(plan.homes) + 1
    if devices & (devices - 1):
        begins.append(f"options.autoRoundNumIPUs(True)  # {devices} is no power of two")
    if plan.stages > 1 and plan.micro_batches < plan.needed_micro_batches:
        setter = micro_batch_option(training=plan.chain.training)[1]
        begins.append(
            f"options.{setter}({plan.needed_micro_batches})  # or more; {plan.micro_batches} now"
        )
    return begins


def _begins(plan: Plan) -> list[tuple[str, str, int]]:
    """Return path, name and device of each stage after the first."""
    stages = zip(plan.names, plan.homes, strict=True)
    return [(path, f"stage{n}", home) for n, (path, home) in enumerate(stages) if n]


def expression(model: torch.nn.Module, path: str) -> str:
    """Format the path of a module as Python: ``model.layers[3]``."""
    text, module = "model", model
    for name in filter(None, path.split(".")):
        listed = isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)
        if listed and name.isdigit():
            text += f"[{name}]"
        elif isinstance(module, torch.nn.ModuleDict):
            text += f'["{name}"]'
        elif name.isidentifier() and not keyword.iskeyword(name):
            text += f".{name}"
        else:
            text += f'.get_submodule("{name}")'
        module = module.get_submodule(name)
    return text


def apply(plan: Plan, model: torch.nn.Module) -> None:
    """Replace the blocks of a model by the stages of a plan."""
    removeBlocks(model)
    _begin(plan, model)


def _begin(plan: Plan, model: torch.nn.Module) -> None:
    for path, name, home in _begins(plan):
        BeginBlock(model.get_submodule(path), name, ipu_id=home)


@contextlib.contextmanager
def applied(plan: Plan | None, model: torch.nn.Module) -> Iterator[None]:
    """Replace the blocks of ``model`` by the stages of a plan, if any, while open."""
    if plan is None:
        yield
        return
    with without_blocks(model):
        _begin(plan, model)
        yield


def refuse_if_not_applicable(plan: Plan, options: Options) -> None:
    """Refuse a plan that blocks cannot follow under these options.

    Raises:
        poptorch.Error: too few micro-batches, or a strategy that places blocks by itself.
    """
    strategy = options._execution_strategy
    pipelined = isinstance(strategy, PipelinedExecution)
    if not pipelined or isinstance(strategy, ShardedExecution) or strategy._auto is None:
        raise error(
            f"The stages were to be applied, and the options set {strategy!r}, which places blocks "
            "in another way. Leave setExecutionStrategy out, or use "
            "poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu)."
        )
    if plan.stages > 1 and plan.micro_batches < plan.needed_micro_batches:
        option = micro_batch_option(training=plan.chain.training)[1]
        raise error(
            f"{plan.stages} stages need {plan.needed_micro_batches} micro-batches to work at the "
            f"same time, and options.{option} is {plan.micro_batches}. Set it to "
            f"{plan.needed_micro_batches} or more, or ask for fewer stages."
        )


# -- plans -----------------------------------------------------------------------------------------


def plan_of(trial: Trial, devices: int, limit: Limit, say: Say = silent) -> Plan:
    """Divide a model among devices, without its own blocks."""
    say("capturing the model")
    chain = chain_of(trial, limit, accumulates=devices > 1)
    say(f"dividing it (parts: {len(chain.units)}, devices: {devices})")
    return divide(chain, devices, limit, trial)


def divide(chain: Chain, devices: int, limit: Limit, trial: Trial) -> Plan:
    """Divide a chain among devices."""
    device, count = device_of(limit, trial), micro_batches(trial)
    # A pipeline that is not filled is refused; the estimate is of one that is.
    filled = max(count, 2 * devices + 1)
    made = partition(chain, devices, device, filled)
    return Plan(
        chain=chain,
        spans=made.spans,
        homes=made.homes,
        limit=limit,
        device=device,
        micro_batches=count,
    )


def plan_as_placed(trial: Trial, limit: Limit) -> Plan:
    """Return the stages of a model's own blocks."""
    placement, programs = trial.placement, trial.captured.programs
    names = mark(programs[0], placement)
    ipus = {row.placement.block: row.placement.ipu for row in placement.rows}
    homes = {stage: ipus[block] for block, stage in placement.located(programs[0]).values()}
    begins = [Begin(name, index) for index, name in enumerate(names)] or [Begin("", 0)]
    chain = read(programs, begins, accumulates=len(begins) > 1, widest=_widest(limit))
    return Plan(
        chain=chain,
        spans=tuple(Span(stage=i, begin=i, end=i + 1) for i in range(len(begins))),
        homes=tuple(homes.get(index, 0) for index in range(len(begins))),
        limit=limit,
        device=device_of(limit, trial),
        micro_batches=micro_batches(trial),
    )


def micro_batches(trial: Trial) -> int:
    """Return the number of micro-batches of an update, or of a call for inference."""
    field, _ = micro_batch_option(training=trial.config.training)
    return getattr(trial.config, field)


def chain_of(trial: Trial, limit: Limit, *, accumulates: bool) -> Chain:
    """Return the chain of a model, without its own blocks."""
    with without_blocks(trial.module), recorded(trial.module) as entries:
        captured = trial.captured
    program = captured.programs[0]
    for node in program.graph.graph.nodes:
        if BLOCK in (node.meta.get("custom") or {}):
            raise error(
                "Forward opens poptorch.Block by itself, which stages that begin at modules cannot "
                "replace. Use poptorch.BeginBlock on modules, or take the blocks out."
            )
    begins = divided(program, entries)
    return read(captured.programs, begins, accumulates=accumulates, widest=_widest(limit))


def _widest(limit: Limit) -> int | None:
    return None if limit.ipus is None else memory.WIDEST


def device_of(limit: Limit, trial: Trial) -> Device:
    """Return the memory of a device, and where a model's options place state."""
    options, is_mk2 = trial.options, limit.ipus is not None
    mode = options._Popart.options.get("autoRecomputation")
    device = Device(
        size=limit.size,
        is_mk2=is_mk2,
        # Here, stages are computed again only if the options say so.
        recomputes=mode in _STAGES_AGAIN or (mode is None and is_mk2),
        heeds_marks=mode not in _NOTHING_AGAIN,
    )
    if not is_mk2:
        return device
    shared = _setting(options, "optimizer", "useReplicatedTensorSharding", False)
    replicas = options.replication_factor * options.Distributed.numProcesses
    return dataclasses.replace(
        device,
        optimizer_away=not _setting(options, "optimizer", "onChip", True),
        sums_away=not _setting(options, "accumulator", "onChip", True),
        weights_away=not _setting(options, "weight", "onChip", True),
        optimizer_shares=replicas if shared else 1,
    )


def _setting(options: Options, kind: str, name: str, otherwise: bool) -> bool:
    """Return an option for the location of tensors of a kind, or ``otherwise``."""
    locations, location = options.TensorLocations, f"location_{kind}"
    settings = getattr(locations, location) if locations.exists(location) else None
    is_set = settings is not None and settings.exists(name)
    return bool(getattr(settings, name)) if is_set else otherwise


# -- measured times --------------------------------------------------------------------------------


def balanced(plan: Plan, trial: Trial, say: Say = silent) -> Plan:
    """Run the stages of a plan and divide again by their times, until the plan is stable.

    Stages run on copies of the weights and of the optimizer's state.

    Returns:
        The plan whose slowest device took the least time.
    """
    best: Plan | None = None
    seen: set[tuple[object, ...]] = set()
    devices = len(plan.loads)
    while len(seen) < _ROUNDS and (plan.spans, plan.homes) not in seen:
        seen.add((plan.spans, plan.homes))
        say(f"compiling {plan.stages} stages and running them, {len(seen)} of at most {_ROUNDS}")
        times = measured(plan, trial)
        spans = [(span.begin, span.end) for span in plan.spans]
        chain = plan.chain.scaled(spans, times)
        ran = dataclasses.replace(plan, chain=chain, measured=True)
        if best is None or _slowest(ran) < _slowest(best):
            best = ran
        plan = divide(chain, devices, plan.limit, trial)
    assert best is not None
    return best


def _slowest(plan: Plan) -> float:
    return max(load.time for load in plan.loads)


def measured(plan: Plan, trial: Trial) -> list[Times]:
    """Return the least time of each stage for a micro-batch, one stage at a time."""
    with applied(plan, trial.module):
        compiled = CompiledModel(trial.module, trial.bound, trial.config, trial.rule, trial.options)
    runner = compiled.session.runner
    try:
        if not isinstance(runner, PipelineRunner):
            raise error(
                "Stages were to be measured, and they run as one program, because "
                f"{compiled.pipelining.reason}."
            )
        runner.one_at_a_time = True
        each: dict[tuple[int, bool], list[int]] = {}
        for _ in range(_CALLS):
            compiled.run(trial.bound)
            for passage in runner.measured.times if runner.measured else ():
                for timed in passage:
                    key = timed.task.stage, timed.task.backward
                    each.setdefault(key, []).append(timed.end - timed.begin)
    finally:
        compiled.session.close()
    return [
        Times(*(min(each.get((stage, back), [0])) / 1e9 for back in (False, True)))
        for stage in range(plan.stages)
    ]


# -- changes ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoreStages(Change):
    """A change that divides a program among ``devices`` devices."""

    devices: int


class Elsewhere(Change):
    """A change of the location of state; programs stay the same."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """A plan as the outcome of changes."""

    plan: Plan

    @property
    def verdict(self) -> Verdict:
        """Verdict of the worst device."""
        return self.plan.verdict

    @property
    def size(self) -> Interval:
        """Bytes of the fullest device."""
        return self.plan.fullest.size


def planned(trial: Trial, limit: Limit) -> Plan:
    """Return the stages of a model's own blocks, or the best ones for the limit's IPUs."""
    if limit.ipus:
        return plan_of(trial, limit.ipus, limit)
    return plan_as_placed(trial, limit)


def optimizer_elsewhere(trial: Trial) -> Iterator[Change]:
    """Yield the optimizer's state outside of the IPU's memory.

    Raises:
        NotOffered: there is no optimizer.
    """
    if not trial.config.training:
        raise NotOffered("optimizer state off-chip: inference has none")
    options = trial.options.clone()
    settings = TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(settings)
    yield Elsewhere(
        name="optimizer state off-chip",
        lines=(f"options.TensorLocations.setOptimizerLocation({_AWAY})",),
        trial=dataclasses.replace(trial, options=options),
        timed=False,  # how fast the way there is, nobody knows here
    )


class OfStages:
    """Devices that each hold a part of a program.

    Args:
        limit: memory of each device.
        before: plan of the program without changes.
    """

    left_out: Sequence[str] = ()

    def __init__(self, limit: Limit, before: Plan):
        self._limit, self._before = limit, before
        self._chains: tuple[Trial, Chain] | None = None
        self.ways: Sequence[Ways] = (
            smaller_micro_batches,
            recomputed,
            halved,
            optimizer_elsewhere,
            self._more_stages,
        )

    def _divided(self, trial: Trial, devices: int) -> Plan:
        if self._chains is None or self._chains[0] is not trial:
            chain = chain_of(trial, self._limit, accumulates=True)
            self._chains = trial, chain  # capturing takes longer than dividing
        return divide(self._chains[1], devices, self._limit, trial)

    def _more_stages(self, trial: Trial) -> Iterator[Change]:
        """Yield divisions among more devices than now, by powers of two."""
        # A new one, which is captured without the blocks that it has now, once for all of these.
        again = dataclasses.replace(trial)
        for devices in _DEVICES:
            if devices > len(self._before.loads):
                name = f"stages on {devices} IPUs"
                yield MoreStages(name=name, lines=(), trial=again, devices=devices)

    def stays(self, now: Placed, ways: Sequence[Ways]) -> Stays | None:
        """Return None, since state can be divided among devices."""
        del now, ways

    def needed(self, now: Placed) -> float:
        """Return the expected bytes of the fullest device."""
        return now.size.expected

    def may_fit(self, change: Change, now: Placed) -> bool:
        """Return whether a change may suffice if memory shrank in proportion to the batch."""
        always, rest = change.least
        if (always, rest) == (1.0, 0.0):
            return True  # nothing is known of what remains
        least = (
            sum((always if part.always else rest) * part.size.low for part in load.parts)
            for load in now.plan.loads
        )
        return max(least) <= now.plan.device.size

    def after(self, change: Change, now: Placed) -> Placed:
        """Return the plan of the changed program."""
        if isinstance(change, Elsewhere):  # nothing has to be captured again
            device = device_of(self._limit, change.trial)
            return Placed(plan=dataclasses.replace(now.plan, device=device))
        if isinstance(change, MoreStages):
            return Placed(plan=self._divided(change.trial, change.devices))
        return Placed(plan=planned(change.trial, self._limit))

    def lines(self, change: Change, after: Placed) -> tuple[str, ...]:
        """Return the lines of the change, or of the stages of its plan."""
        if not isinstance(change, MoreStages):
            return change.lines
        has_blocks = self._before.stages > 1 and not self._limit.ipus
        instead = ("# in the place of the blocks that it has:",) if has_blocks else ()
        return (*instead, *lines(after.plan, change.trial.module))

    def ratios(self, change: Change, now: Placed, after: Placed) -> Mapping[str, float]:
        """Return the ratio of the modelled times of an update with as many rows."""
        before = now.plan.update_time
        known = before and change.timed
        return {"modelled time": after.plan.update_time / before} if known else {}


# -- reports ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedReport(Report):
    """The answer whether each stage of a model fits into its device; ``print`` it."""

    @property
    def plan(self) -> Plan:
        """The plan of stages with devices and boundaries."""
        return self.answer

    def text(self) -> str:
        """Format the stages and their memory."""
        parts = [text.sentence(self.plan), text.table(self.plan), text.memory_table(self.plan)]
        if self.plan.device.is_mk2:
            parts.append(_BAND)
        return "\n\n".join(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageReport(PlacedReport):
    """A division of a model into stages; ``print`` it.

    Attributes:
        answer: the stages.
        model: the divided model.
    """

    model: torch.nn.Module

    def data(self) -> dict[str, Any]:
        """Return all fields as JSON values: bytes, shares from 0 to 1, and seconds."""
        return {**super().data(), "lines": self.lines()}

    def lines(self) -> list[str]:
        """Return the lines of Python for these stages, with the model called ``model``."""
        return lines(self.plan, self.model)

    def apply(self) -> None:
        """Replace the model's blocks by these stages; call this before the model is compiled.

        The options need as many micro-batches as the last of ``lines`` says, if it says so.
        """
        apply(self.plan, self.model)

    def text(self) -> str:
        """Format the stages, their memory, and the lines to paste."""
        lines = "\n".join(self.lines()) or "One stage needs no blocks."
        return "\n\n".join([super().text(), text.bubbles(self.plan), lines])
