"""The chain of a wrapped model, and the devices that its options describe."""

import dataclasses

from abele.fit import Limit
from abele.fit.answers import Say, silent
from abele.stage import Device, Plan, Span, divided, mk2, partition, read
from abele.stage.chain import Chain
from abele.stage.entries import recorded
from abele.stage.reading import Begin
from poptorch._compiled.pipelines import mark
from poptorch._error import error
from poptorch._fit.trial import Trial
from poptorch._forward.blocks import without_blocks
from poptorch._forward.tracing import BLOCK
from poptorch.options import Options

# autoRecomputation, by the original's numbers; unset it is 3 where there are several stages.
_NOTHING_AGAIN, _STAGES_AGAIN = (0, 2), (1, 3, 4)


def plan_of(trial: Trial, devices: int, limit: Limit, say: Say = silent) -> Plan:
    """Divide a model among devices; the blocks that it has do not count.

    Args:
        trial: of the model, not captured yet.
        devices: how many.
        limit: the memory of each.
        say: told what takes time now.

    Raises:
        CaptureError: forward cannot be captured.
        StageError: there are not as many parts.
    """
    say("capturing the model")
    chain = chain_of(trial, limit, accumulates=devices > 1)
    say(f"dividing it (parts: {len(chain.units)}, devices: {devices})")
    return divide(chain, devices, limit, trial)


def divide(chain: Chain, devices: int, limit: Limit, trial: Trial) -> Plan:
    """The plan for a chain that is known."""
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
    """The stages that the blocks of a model make.

    Args:
        trial: of the model.
        limit: the memory of each device.

    Raises:
        CaptureError, poptorch.Error: as for compiling.
    """
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
    """How many one update sees, or one call without training."""
    config = trial.config
    return config.gradient_accumulation if config.training else config.device_iterations


def chain_of(trial: Trial, limit: Limit, *, accumulates: bool) -> Chain:
    """The chain of a model, whose blocks do not count.

    Args:
        trial: of the model, not captured yet.
        limit: the memory of each device.
        accumulates: gradients are summed up even if the options do not say so.

    Raises:
        CaptureError: forward cannot be captured.
    """
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
    return None if limit.ipus is None else mk2.WIDEST


def device_of(limit: Limit, trial: Trial) -> Device:
    """The memory of a device, and what the options of a model do with it."""
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
    """What the options say of where tensors of a kind are, if they say it."""
    locations, location = options.TensorLocations, f"location_{kind}"
    settings = getattr(locations, location) if locations.exists(location) else None
    is_set = settings is not None and settings.exists(name)
    return bool(getattr(settings, name)) if is_set else otherwise
