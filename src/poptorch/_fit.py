"""Estimate of whether a wrapped model fits into a memory, and changes that would make it fit.

Only changes that have an effect here are offered, and only ones that leave the numbers of an update
alone. Half precision and smaller batches of batch norms do not, and say so.
"""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from abele import fit
from abele.capture import Captured
from abele.compile import build
from abele.compile.start import Start, requested
from abele.fit import Answer, Calls, Estimate, Verdict, ladder
from abele.fit.estimate import compare, default_limit, table
from abele.fit.ladder import Change, Ladder, NotOffered, Search, Stays, Ways
from abele.fit.limits import of_machine
from abele.fit.questions import Say, silent
from abele.fit.run import STATE
from abele.step import batching
from abele.step.config import OutputMode, Reduction, StepConfig
from abele.step.update_rules import UpdateRule
from abele.targets import Target
from abele.trace.module_state import ModuleState
from poptorch._forward import annotations
from poptorch._forward.arguments import Bound
from poptorch._forward.blocks import PlacementTable, placed
from poptorch._wrapper.capture import Forward
from poptorch._wrapper.compiled import Inputs, micro_batch
from poptorch.options import Options

_HOOK = "lambda module, inputs, output: poptorch.recomputationCheckpoint(output)"
#: Size of float16 relative to float32.
HALF = 0.5
#: Changes of the original that have no effect here, with reasons.
NOT_OFFERED = (
    "TensorLocations.setOptimizerLocation: there is one memory here, so it has no effect",
    "poptorch.BeginBlock: stages of a pipeline share the memory of one device here",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A model with the arguments of a call; captured when first needed, never compiled or run.

    Attributes:
        module: the model.
        bound: arguments of the call.
        config: partition of the batch.
        rule: the optimizer; None for inference.
        options: options of the wrapper.
    """

    module: torch.nn.Module
    bound: Bound
    config: StepConfig
    rule: UpdateRule | None
    options: Options

    @functools.cached_property
    def captured(self) -> Captured:
        """The captured programs.

        Raises:
            CaptureError: forward cannot be captured.
            BatchError: the batch does not divide.
        """
        forward = Forward(self.module, self._inputs.recorded, self.config, self.rule, self.options)
        examples = micro_batch(self._rows, self.config)
        return forward.trace(examples, origins=True).captured

    @functools.cached_property
    def placement(self) -> PlacementTable:
        """Blocks of the operators of forward."""
        return placed(self.captured.programs, self.options, training=self.config.training)

    @functools.cached_property
    def _inputs(self) -> Inputs:
        return Inputs(self.bound, self.module)

    @functools.cached_property
    def _rows(self) -> list[torch.Tensor]:
        return self._inputs.on_device(self.bound)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the inputs of one call."""
        return sum(each.nbytes for each in self._rows)

    @property
    def module_bytes(self) -> int:
        """Bytes of the module's own parameters and buffers, each memory once."""
        state = ModuleState.of(self.module)
        tensors = (*state.params.values(), *state.buffers.values())
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
        return sum(each.nbytes() for each in storages.values())

    @property
    def micro_batch_rows(self) -> int:
        """Micro-batch size; 1 if no input has a batch dimension."""
        rows = [each.shape[0] for each in self._rows if each.dim()]
        return batching.micro_batch_size(rows[0], self.config) if rows else 1


# -- changes --------------------------------------------------------------------------------------


def micro_batch_option(*, training: bool) -> tuple[str, str]:
    """Return the field and the setter for the number of micro-batches of an update or a call."""
    if training:
        return "gradient_accumulation", "Training.gradientAccumulation"
    return "device_iterations", "deviceIterations"


def smaller_micro_batches(trial: Trial) -> Iterator[Change]:
    """Yield micro-batches of a half, a quarter and so on.

    Raises:
        NotOffered: results would differ.
    """
    config, rows = trial.config, trial.micro_batch_rows
    if config.training and config.reduction is not Reduction.MEAN:
        raise NotOffered("smaller micro-batches: gradients are summed, so an update would change")
    if not config.training and config.output_mode is not OutputMode.ALL:
        raise NotOffered("smaller micro-batches: only OutputMode.All returns the results of all")
    field, setter = micro_batch_option(training=config.training)
    parts = 2
    while rows % parts == 0:
        count = getattr(config, field) * parts
        yield Change(
            name=f"micro-batches of {rows // parts} instead of {rows} rows",
            lines=(
                f"options.{setter}({count})",
                f"# batch_size={rows // parts} in poptorch.DataLoader",
            ),
            trial=dataclasses.replace(trial, config=dataclasses.replace(config, **{field: count})),
            warning=_batch_norms(trial, rows // parts),
            least=(1.0, 1 / parts),
        )
        parts *= 2


def _batch_norms(trial: Trial, rows: int) -> str:
    norms = [name for name, each in trial.module.named_modules() if isinstance(each, _BatchNorm)]
    if not norms or not trial.config.training:
        return ""
    return (
        f"{len(norms)} batch norms ({norms[0]}, ...) take their statistics of {rows} rows then, "
        "so training differs"
    )


def recomputed(trial: Trial) -> Iterator[Change]:
    """Yield rematerialization of the inside of consecutive modules.

    Raises:
        NotOffered: there are no consecutive modules, or the options forbid it.
    """
    if not annotations.recomputes(trial.options, training=trial.config.training):
        raise NotOffered("recomputation: inference keeps nothing, or the options turn it off")
    path, blocks = _blocks(trial.module)
    if len(blocks) < 2:
        raise NotOffered("recomputation: the model has no modules one after the other")
    parent = f'model.get_submodule("{path}")' if path else "model"
    yield Change(
        name=f"compute the inside of {len(blocks)} modules of {path or 'the model'} again",
        lines=(
            f"for block in {parent}.children():",
            f"    block.register_forward_hook({_HOOK})",
        ),
        trial=dataclasses.replace(trial),  # a new one, which is captured with the hooks
        around=functools.partial(_hooked, path),
    )


def _blocks(module: torch.nn.Module) -> tuple[str, list[torch.nn.Module]]:
    """Return path and children of the module with most nested children, or most children."""
    several = [(path, list(each.children())) for path, each in module.named_modules()]

    def deep(blocks: list[torch.nn.Module]) -> int:
        return sum(1 for block in blocks if next(block.children(), None) is not None)

    return max(several, key=lambda each: (deep(each[1]), len(each[1])))


@contextlib.contextmanager
def _hooked(path: str, module: torch.nn.Module) -> Iterator[None]:
    handles = [
        block.register_forward_hook(
            lambda module, inputs, output: annotations.recomputationCheckpoint(output)
        )
        for block in module.get_submodule(path).children()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def halved(trial: Trial) -> Iterator[Change]:
    """Yield weights and inputs in float16.

    Raises:
        NotOffered: there is nothing in float32.
    """
    if not any(each.dtype is torch.float32 for each in trial.module.parameters()):
        raise NotOffered("half: no parameter is in float32")
    bound = trial.bound
    yield Change(
        name="weights and inputs in half",
        lines=("model.half()  # before the optimizer is made", "# and .half() of every input"),
        trial=dataclasses.replace(
            trial,
            module=copy.deepcopy(trial.module).half(),
            bound=dataclasses.replace(
                bound,
                positional=tuple(map(_half, bound.positional)),
                keywords={name: _half(each) for name, each in bound.keywords.items()},
            ),
        ),
        timed=False,
        least=(HALF, HALF),
        warning="numbers have 11 bits then instead of 24; see options.Precision and loss_scaling",
    )


def _half(value: Any) -> Any:
    wide = isinstance(value, torch.Tensor) and value.dtype is torch.float32
    return value.half() if wide else value


class OfMemory:
    """A memory that holds the full program.

    Args:
        estimated: returns the estimate of a changed model.
    """

    #: By ascending cost: smaller kernels, a second forward, precision.
    ways: Sequence[Ways] = (smaller_micro_batches, recomputed, halved)
    left_out: Sequence[str] = NOT_OFFERED

    def __init__(self, estimated: Callable[[Trial], Estimate]):
        self._estimated = estimated

    def stays(self, now: Answer, ways: Sequence[Ways]) -> Stays | None:
        """Return the memory of process and state if that alone exceeds the limit."""
        share = HALF if halved in ways else 1.0
        state = [part.size.high for part in now.estimate.peak.parts if part.role in STATE]
        process = sum(part.size.high for part in now.beside)
        stays = Stays(process=process, state=share * sum(state))
        return stays if stays.size > now.limit.size else None

    def needed(self, now: Answer) -> float:
        """Return the bytes of the programs, without the process."""
        return now.estimate.size.expected

    def may_fit(self, change: Change, now: Answer) -> bool:
        """Return whether a change may suffice if memory shrank in proportion to the batch."""
        always, rest = change.least
        beside = sum(part.size.high for part in now.beside)
        least = max(
            sum((always if part.always else rest) * part.size.high for part in moment.parts)
            for moment in now.estimate.moments
        )
        return beside + least <= now.limit.size

    def after(self, change: Change, now: Answer) -> Answer:
        """Return the answer for the changed program."""
        estimate = self._estimated(change.trial)
        return fit.decide(estimate, now.limit, now.beside)

    def lines(self, change: Change, after: Answer) -> tuple[str, ...]:
        """Return the lines of the change."""
        del after
        return change.lines

    def ratios(self, change: Change, now: Answer, after: Answer) -> Mapping[str, float]:
        """Return the ratios of FLOPs and of bytes moved."""
        del change
        return after.estimate.work.ratios(now.estimate.work)


# -- report ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """An answer about memory, with the changes that make a model fit; ``print`` it.

    Attributes:
        answer: the verdict and what it follows from.
    """

    answer: Any
    _search: Search | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> Verdict:
        """``fits``, ``does not fit`` or ``uncertain``; of several devices that of the worst."""
        return self.answer.verdict

    @property
    def ladder(self) -> Ladder | None:
        """Cheapest changes that make it fit, searched when first read.

        None if it fits, and for ``planStages``.
        """
        return self._ladder(silent)

    def _ladder(self, say: Say) -> Ladder | None:
        if self._search is None or self.verdict is Verdict.FITS:
            return None
        return self._search.ladder(say)

    def data(self) -> dict[str, Any]:
        """Return all fields as JSON values: bytes, shares from 0 to 1, and seconds."""
        if self._search is None:
            return self.answer.data()
        changes = None if self.ladder is None else self.ladder.data()
        return {**self.answer.data(), "changes": changes}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text of the answer, then that of the changes, which take longer to find."""
        yield self.text()
        found = self._ladder(say)
        if found is not None:
            yield "\n".join(ladder.changes(found))

    def text(self) -> str:
        """Format the answer without changes."""
        return table(self.answer)

    def __str__(self) -> str:
        return "\n".join(self.pieces())


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitReport(Report):
    """The answer whether a model fits; ``print`` it.

    Attributes:
        answer: verdict and estimate.
        placement: blocks of the model's operators.
    """

    placement: PlacementTable


def check(trial: Trial, limit: str | None) -> FitReport:
    """Capture a model, estimate what it needs and compare it with a limit.

    Args:
        trial: the model.
        limit: ``cpu``, ``cuda:0`` or a size; by default that of the device.

    Raises:
        LimitError: there is no such limit.
        CaptureError: forward cannot be captured.
    """
    target, _ = build.choose_target()
    known = of_machine(limit or default_limit(target))  # before capture, which takes longer
    estimated = estimate(trial, target)
    programs, counted = trial.captured.programs, trial.module_bytes + trial.batch_bytes
    answer = compare(estimated, known, programs, target, counted=counted)
    search = Search(trial, answer, OfMemory(functools.partial(estimate, target=target)))
    return FitReport(answer=answer, placement=trial.placement, _search=search)


def estimate(trial: Trial, target: Target) -> Estimate:
    """Estimate the memory of a run of the model, and count its work."""
    start = requested() or Start(trial.options._start_mode)
    calls = Calls(
        module=trial.module_bytes,
        batch=trial.batch_bytes,
        tiered=start is Start.TIERED,
    )
    return fit.estimate(trial.captured.programs, trial.config, target, calls)
