"""Memory estimates and stage plans of a wrapped model, for ``abele fit`` and ``abele stage``."""

import dataclasses
import keyword
import os
from collections.abc import Iterator
from typing import Any

import torch

from abele import questions
from abele.fit import Limit, Verdict
from abele.fit.limits import of_device, of_machine
from abele.questions import Say, silent
from abele.stage import Device, Plan, Span, divided, partition, read
from abele.stage.memory import Chain
from abele.stage.reading import Begin, recorded
from poptorch._error import error
from poptorch._fit import FitReport, Trial, check, micro_batch_option
from poptorch._forward.arguments import Bound
from poptorch._forward.blocks import BLOCK, BeginBlock, removeBlocks, without_blocks
from poptorch._wrapper.compiled import WrappedModel
from poptorch._wrapper.compiling import Compiling
from poptorch._wrapper.errors import Translated
from poptorch._wrapper.pipelines import mark
from poptorch.options import Options

# autoRecomputation, by the original's numbers; unset it is 3 if there are several stages.
_NOTHING_AGAIN, _STAGES_AGAIN = (0, 2), (1, 3, 4)
_BAND = (
    "Code and exchange are a stated band, not measured; the estimate has not been compared with "
    "an IPU."
)


def _plan_of(trial: Trial, devices: int, limit: Limit) -> Plan:
    """Partition a model into pipeline stages for ``devices`` devices, ignoring its own blocks."""
    chain = _chain_of(trial, accumulates=devices > 1)
    device, count = _device_of(limit, trial), _micro_batches(trial)
    # A pipeline that is not filled is refused; the estimate is of one that is.
    made = partition(chain, devices, device, max(count, 2 * devices + 1))
    return Plan(
        chain=chain,
        spans=made.spans,
        homes=made.homes,
        limit=limit,
        device=device,
        micro_batches=count,
    )


def _chain_of(trial: Trial, *, accumulates: bool) -> Chain:
    """Return a model's modules as a chain to partition, ignoring the model's own blocks."""
    with without_blocks(trial.module), recorded(trial.module) as entries:
        captured = trial.captured
    program = captured.programs[0]
    for node in program.graph.graph.nodes:
        if BLOCK in (node.meta.get("custom") or {}):
            raise error(
                "Forward opens poptorch.Block by itself, which stages that begin at modules cannot "
                "replace. Use poptorch.BeginBlock on modules, or take the blocks out."
            )
    return read(captured.programs, divided(program, entries), accumulates=accumulates)


def _plan_as_placed(trial: Trial, limit: Limit) -> Plan:
    """Return the stage plan that follows from a model's own blocks."""
    placement, programs = trial.placement, trial.captured.programs
    names = mark(programs[0], placement)
    ipus = {row.placement.block: row.placement.ipu for row in placement.rows}
    homes = {stage: ipus[block] for block, stage in placement.located(programs[0]).values()}
    begins = [Begin(name, index) for index, name in enumerate(names)] or [Begin("", 0)]
    return Plan(
        chain=read(programs, begins, accumulates=len(begins) > 1),
        spans=tuple(Span(stage=i, begin=i, end=i + 1) for i in range(len(begins))),
        homes=tuple(homes.get(index, 0) for index in range(len(begins))),
        limit=limit,
        device=_device_of(limit, trial),
        micro_batches=_micro_batches(trial),
    )


def _micro_batches(trial: Trial) -> int:
    """Return the micro-batches per weight update, or per call for inference."""
    return getattr(trial.config, micro_batch_option(training=trial.config.training)[0])


def _device_of(limit: Limit, trial: Trial) -> Device:
    """Return a device's memory size, with recomputation and shares of state by the options."""
    options = trial.options
    mode = options._Popart.options.get("autoRecomputation")
    device = Device(
        size=limit.size,
        is_mk2=limit.is_mk2,
        # Here, stages are computed again only if the options say so.
        recomputes=mode in _STAGES_AGAIN or (mode is None and limit.is_mk2),
        heeds_marks=mode not in _NOTHING_AGAIN,
    )
    if not limit.is_mk2:
        return device
    kinds = {"weight": "weight", "sums": "accumulator", "optimizer": "optimizer"}
    shares = {name: float(_setting(options, kind, "onChip", True)) for name, kind in kinds.items()}
    if _setting(options, "optimizer", "useReplicatedTensorSharding", False):
        shares["optimizer"] /= options.replication_factor * options.Distributed.numProcesses
    return dataclasses.replace(device, shares=shares)


def _setting(options: Options, kind: str, name: str, otherwise: bool) -> bool:
    """Return a tensor location option for a kind of tensor, or ``otherwise`` if it is not set."""
    locations, location = options.TensorLocations, f"location_{kind}"
    settings = getattr(locations, location) if locations.exists(location) else None
    is_set = settings is not None and settings.exists(name)
    return bool(getattr(settings, name)) if is_set else otherwise


# -- report ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageReport:
    """The pipeline stages of a model, and whether each fits into its device; ``print`` it.

    Attributes:
        plan: the stages with devices and boundaries.
        model: the model that was divided; None if the stages are those of its own blocks.
    """

    plan: Plan
    model: torch.nn.Module | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the fullest device: ``fits``, ``does not fit`` or ``uncertain``."""
        return self.plan.verdict

    def data(self) -> dict[str, Any]:
        """Return the stage report as JSON values: bytes, and shares from 0 to 1."""
        return {**self.plan.data(), "lines": self.lines()}

    def lines(self) -> list[str]:
        """Return Python lines that give a model, called ``model``, the planned stages.

        No line reduces the number of micro-batches, since the batch of a call depends on it.
        """
        plan, model = self.plan, self.model
        if model is None:
            return []
        begins = [
            f'poptorch.BeginBlock({_expression(model, path)}, "{name}", ipu_id={home})'
            for path, name, home in self._begins()
        ]
        devices = max(plan.homes) + 1
        if devices & (devices - 1):
            begins.append(f"options.autoRoundNumIPUs(True)  # {devices} is no power of two")
        if plan.stages > 1 and plan.micro_batches < plan.needed_micro_batches:
            setter = micro_batch_option(training=plan.chain.training)[1]
            needed = f"{plan.needed_micro_batches})  # or more; {plan.micro_batches} now"
            begins.append(f"options.{setter}({needed}")
        return begins

    def _begins(self) -> list[tuple[str, str, int]]:
        """Return the module path, block name and device of each stage after the first."""
        stages = zip(self.plan.names, self.plan.homes, strict=True)
        return [(path, f"stage{n}", home) for n, (path, home) in enumerate(stages) if n]

    def apply(self) -> None:
        """Replace the model's blocks by the planned stages; call this before compilation.

        The options need as many micro-batches as the last of ``lines`` says, if it says so.
        """
        if self.model is not None:
            removeBlocks(self.model)
            for path, name, home in self._begins():
                BeginBlock(self.model.get_submodule(path), name, ipu_id=home)

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text of the stage report, in one piece."""
        del say
        yield str(self)

    def __str__(self) -> str:
        parts = [self.plan.text()]
        if self.plan.device.is_mk2:
            parts.append(_BAND)
        if self.model is not None:
            parts.append("\n".join(self.lines()) or "One stage needs no blocks.")
        return "\n\n".join(parts)


def _expression(model: torch.nn.Module, path: str) -> str:
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


# -- members of a wrapper -------------------------------------------------------------------------


class Estimates:
    """The wrapper methods that estimate a model's memory and plan its pipeline stages."""

    _lock: Any
    _wrapped: WrappedModel
    _compiling: Compiling
    _translated: Translated

    def fit(
        self, *args: Any, limit: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> FitReport | StageReport:
        """Estimate whether the model fits into a memory, before anything is compiled or run.

        An addition of this project. Takes seconds; weights and random numbers do not change.

        Args:
            args: arguments of the model's forward, with the batch of a full call.
            limit: ``cpu``, ``cuda:0`` or a size such as ``8GiB``; ``mk2`` for IPUs, each with a
                stage of the model's blocks. By default the memory of the device that would run it.
            kwargs: keyword arguments of forward.

        Returns:
            The verdict, and the peak by role and by line of the program; ``print`` it.

        Raises:
            AssertionError: the batch does not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured, or there is no such limit.
        """
        with self._lock:
            bound = self._wrapped.binder.bind(args, kwargs)
            with self._translated:
                return self._fit(bound, None if limit is None else str(limit))

    def _fit(self, bound: Bound, limit: str | None) -> FitReport | StageReport:
        known = None if limit is None else of_machine(limit)
        trial = self._compiling.trial(bound)
        if known is None or not known.is_mk2:
            return check(trial, limit)
        return StageReport(plan=_plan_as_placed(trial, known))

    def planStages(
        self, ipus: int, *args: Any, limit: str | os.PathLike[str] = "mk2", **kwargs: Any
    ) -> StageReport:
        """Divide the model into stages that take equally long and fit into memory.

        An addition of this project. Nothing changes before ``apply`` of the result is called.

        Args:
            ipus: number of stages that run at the same time.
            args: arguments of the model's forward, with the batch of a full call.
            limit: memory of each IPU: ``mk2``, or a size such as ``8GiB``.
            kwargs: keyword arguments of forward.

        Returns:
            The stages with memory, share of the work, and lines to paste; ``print`` it.

        Raises:
            AssertionError: the batch does not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured or divided, or there is no such limit.
        """
        with self._lock:
            bound = self._wrapped.binder.bind(args, kwargs)
            with self._translated:
                return self._divided(bound, ipus, str(limit))

    def _divided(self, bound: Bound, ipus: int, limit: str) -> StageReport:
        known = of_device(limit)
        plan = _plan_of(self._compiling.trial(bound), ipus, known)
        return StageReport(plan=plan, model=self._wrapped.user_module)

    def _answer_if_asked(self, bound: Bound) -> None:
        """Run the estimate of a pending ``abele fit`` or ``stage`` command instead of compiling."""
        question = questions.taken()
        if question is None:
            return
        wanted = question.wanted
        with self._translated:
            if question.command == "fit":
                question.answer_with(lambda: self._fit(bound, wanted))
            question.answer_with(lambda: self._divided(bound, wanted["devices"], wanted["limit"]))
