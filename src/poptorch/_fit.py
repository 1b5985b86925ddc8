"""Estimates whether a wrapped model fits into memory, and suggests changes that make it fit.

Only changes that have an effect here are offered, and only those that leave the numbers of an
update alone. Half precision and smaller batches of batch norms do not, and say so.
"""

import contextlib
import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from abele import fit
from abele.capture import Captured
from abele.compilation import build
from abele.compilation.start import Start, requested
from abele.errors import AbeleError
from abele.fit import Answer, Calls, Estimate, Verdict
from abele.fit.estimate import compare, table
from abele.fit.limits import bytes_text, of_machine
from abele.fit.run import STATE
from abele.questions import Say, silent
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
#: Least share of the programs' memory that a change saves: in any case, and if a step has
#: ``_MUCH`` times the work and the model does not fit all the same.
_LEAST, _LITTLE, _MUCH = 0.01, 0.1, 2.0
#: Errors of capturing a forward that was not written for a change.
_FAILURES = (AbeleError, RuntimeError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A model with the arguments of a call, captured lazily to estimate its memory.

    Attributes:
        config: partition of the batch.
        rule: the optimizer; None for inference.
    """

    module: torch.nn.Module
    bound: Bound
    config: StepConfig
    rule: UpdateRule | None
    options: Options

    @functools.cached_property
    def captured(self) -> Captured:
        """The captured programs of the model.

        Raises:
            CaptureError: forward cannot be captured.
            BatchError: the batch does not divide.
        """
        forward = Forward(self.module, self._inputs.recorded, self.config, self.rule, self.options)
        examples = micro_batch(self._rows, self.config)
        return forward.trace(examples, origins=True).captured

    @functools.cached_property
    def placement(self) -> PlacementTable:
        """The table of blocks that forward's operators are placed in."""
        return placed(self.captured.programs, self.options, training=self.config.training)

    @functools.cached_property
    def _inputs(self) -> Inputs:
        return Inputs(self.bound, self.module)

    @functools.cached_property
    def _rows(self) -> list[torch.Tensor]:
        return self._inputs.on_device(self.bound)

    @property
    def batch_bytes(self) -> int:
        """The input bytes of one call."""
        return sum(each.nbytes for each in self._rows)

    @property
    def module_bytes(self) -> int:
        """The bytes of a module's parameters and buffers, counting shared storage once."""
        state = ModuleState.of(self.module)
        tensors = (*state.params.values(), *state.buffers.values())
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
        return sum(each.nbytes() for each in storages.values())

    @property
    def micro_batch_rows(self) -> int:
        """The micro-batch size in rows; 1 if no input has a batch dimension."""
        rows = [each.shape[0] for each in self._rows if each.dim()]
        return batching.micro_batch_size(rows[0], self.config) if rows else 1


# -- changes --------------------------------------------------------------------------------------


class NotOffered(Exception):
    """The reason why a memory-saving change does not apply to a program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A change to a program that may reduce its memory.

    Attributes:
        name: description.
        lines: Python to add to the program.
        trial: the program with the change.
        around: context for the trial's module while it is captured.
        warning: other effects of the change, or empty.
        least: least remaining shares of memory that is always live, and of all other memory.
    """

    name: str
    lines: tuple[str, ...]
    trial: Trial
    around: Callable[[torch.nn.Module], contextlib.AbstractContextManager[Any]] = (
        contextlib.nullcontext
    )
    warning: str = ""
    least: tuple[float, float] = (1.0, 0.0)


def micro_batch_option(*, training: bool) -> tuple[str, str]:
    """Return the config field and the option setter for the number of micro-batches."""
    if training:
        return "gradient_accumulation", "Training.gradientAccumulation"
    return "device_iterations", "deviceIterations"


def smaller_micro_batches(trial: Trial) -> Iterator[Change]:
    """Yield changes that divide the micro-batch size by 2, 4 and so on, to save memory.

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
    """Yield the change that rematerializes activations inside consecutive modules.

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
    """Return path and children of the module with the most nested children, then most children."""
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
    """Yield the change that converts weights and inputs to float16.

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
        least=(HALF, HALF),
        warning="numbers have 11 bits then instead of 24; see options.Precision and loss_scaling",
    )


def _half(value: Any) -> Any:
    wide = isinstance(value, torch.Tensor) and value.dtype is torch.float32
    return value.half() if wide else value


#: Kinds of changes by ascending cost: smaller kernels, a second forward, precision.
WAYS: Sequence[Callable[[Trial], Iterator[Change]]] = (smaller_micro_batches, recomputed, halved)


# -- search ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """A memory-saving change, estimated on top of the preceding changes.

    Attributes:
        name: description.
        lines: Python to add to the program.
        warning: other effects of the change, or empty.
        saved: expected reduction of peak bytes.
        ratios: work of a step with the change relative to that without, by name.
        answer: estimate with this change and the preceding ones.
    """

    name: str
    lines: tuple[str, ...]
    warning: str
    saved: float
    ratios: Mapping[str, float]
    answer: Answer

    def data(self) -> dict[str, Any]:
        """Return all fields of a memory-saving change as JSON values."""
        answer = self.answer
        return {
            **{each.name: getattr(self, each.name) for each in dataclasses.fields(self)},
            "lines": list(self.lines),
            "ratios": dict(self.ratios),
            "answer": {"verdict": answer.verdict.value, "bytes": dataclasses.asdict(answer.size)},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ladder:
    """A sequence of changes that make a model fit into memory, or at least need less.

    Attributes:
        left_out: changes that are not offered, with reasons.
        stays: bytes of process and of state that exceed the limit whatever is changed, which ended
            the search; None if they do not.
    """

    rungs: tuple[Rung, ...]
    left_out: tuple[str, ...]
    stays: Mapping[str, float] | None = None

    @property
    def fits(self) -> bool:
        """True if the model fits into memory with all changes."""
        return bool(self.rungs) and self.rungs[-1].answer.verdict is Verdict.FITS

    def data(self) -> dict[str, Any]:
        """Return the memory-saving changes and their outcome as JSON values."""
        return {
            "fits": self.fits,
            "rungs": [rung.data() for rung in self.rungs],
            "left_out": list(self.left_out),
            "stays": self.stays,
        }

    def __str__(self) -> str:
        if self.fits:
            outcome = "It fits with these changes, which were estimated one after the other:"
        elif self.rungs:
            outcome = "It needs less with these changes, but none of them is sure to make it fit:"
        else:
            outcome = self._staying() or "No change that is offered here makes it need less."
        lines = ["", outcome]
        for rung in self.rungs:
            ratios = [f"{ratio:.2f} times the {name}" for name, ratio in rung.ratios.items()]
            per_step = f", a step has {' and '.join(ratios)}" if ratios else ""
            low, _, high = rung.answer.size.texts()
            less = f"{bytes_text(rung.saved)} less ({low} to {high})"
            lines.append(f"  {rung.name}: {less}{per_step}")
            lines += [f"      {line}" for line in rung.lines]
            lines += [f"    Warning: {rung.warning}."] if rung.warning else []
        if self.stays is None:
            lines += ["Not offered:", *(f"  {reason}." for reason in self.left_out)]
        elif self.rungs:
            lines.append(self._staying())
        return "\n".join(lines)

    def _staying(self) -> str:
        if self.stays is None:
            return ""
        return (
            "No change that is offered here is sure to make it fit: weights and the optimizer's "
            f"state take {bytes_text(self.stays['state'])} whatever is changed, and the process "
            f"without the model may take {bytes_text(self.stays['process'])}."
        )


class Search:
    """Tries memory-saving changes to a program, one kind after the other, until it fits.

    Args:
        answer: estimate of the unchanged program.
        say: called with each change that is tried.
    """

    def __init__(self, trial: Trial, answer: Answer, target: Target, say: Say):
        self._trial, self._answer, self._target, self._say = trial, answer, target, say
        self._rungs: list[Rung] = []
        self._left_out: list[str] = list(NOT_OFFERED)
        self._opened: list[Change] = []

    def ladder(self) -> Ladder:
        """Try memory-saving changes until the model fits, and return those that help."""
        stays = None
        for number, ways in enumerate(WAYS):
            if self._answer.verdict is Verdict.FITS:
                break
            stays = _staying(self._answer, halves=halved in WAYS[number:])
            if stays is not None:
                break
            try:
                self._try(list(ways(self._trial)))
            except NotOffered as reason:
                self._left_out.append(str(reason))
            except _FAILURES as error:
                why = str(error).partition("\n")[0] or type(error).__name__
                self._left_out.append(f"{ways.__name__.replace('_', ' ')}: {why}")
        return Ladder(rungs=tuple(self._rungs), left_out=tuple(self._left_out), stays=stays)

    def _try(self, several: list[Change]) -> None:
        """Adopt the smallest change that makes the model fit, or else the last that saves memory.

        Raises:
            NotOffered: none of them saves memory.
        """
        now, why = self._answer, ""
        best: tuple[Change, Rung] | None = None
        for change in [each for each in several if _may_fit(each, now)] or several[-1:]:
            self._say(f"trying {change.name}")
            try:
                after = self._after(change)
            except _FAILURES:
                if best is None:
                    raise
                break  # what is left goes further than what failed
            rung = Rung(
                name=change.name,
                lines=change.lines,
                warning=change.warning,
                saved=now.size.expected - after.size.expected,
                ratios=after.estimate.work.ratios(now.estimate.work),
                answer=after,
            )
            why = not_worth_it(rung, now.estimate.size.expected)
            if not why:
                best = change, rung
            if after.verdict is Verdict.FITS:
                break
        if best is not None:
            change, rung = best
            self._opened.append(change)
            self._rungs.append(rung)
            self._trial, self._answer = change.trial, rung.answer
        elif why:
            raise NotOffered(why)

    def _after(self, change: Change) -> Answer:
        """Capture and estimate a program with a change applied."""
        with contextlib.ExitStack() as stack:
            for each in (*self._opened, change):
                stack.enter_context(each.around(change.trial.module))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # the user has had those of the model as it is
            changed = estimate(change.trial, self._target)
        return fit.decide(changed, self._answer.limit, self._answer.beside)


def not_worth_it(rung: Rung, needed: float) -> str:
    """Return why a change saves too little memory to be offered, or an empty string."""
    if rung.saved <= _LEAST * needed:
        return f"{rung.name}: saves less than {100 * _LEAST:.0f} %"
    ratio, name = max(((each, name) for name, each in rung.ratios.items()), default=(0.0, ""))
    little = rung.saved < _LITTLE * needed and rung.answer.verdict is not Verdict.FITS
    if ratio >= _MUCH and little:
        saved = 100 * rung.saved / needed
        return f"{rung.name}: saves {saved:.0f} %, and a step has {ratio:.2f} times the {name}"
    return ""


def _staying(now: Answer, *, halves: bool) -> dict[str, float] | None:
    """Return the memory of process and state if it exceeds the limit by itself, else None."""
    state = sum(part.size.high for part in now.estimate.peak.parts if part.role in STATE)
    process = sum(part.size.high for part in now.beside)
    stays = {"process": process, "state": state * HALF if halves else state}
    return stays if sum(stays.values()) > now.limit.size else None


def _may_fit(change: Change, now: Answer) -> bool:
    """Return whether a change could suffice if memory shrank in proportion to the batch."""
    always, rest = change.least
    beside = sum(part.size.high for part in now.beside)
    least = max(
        sum((always if part.always else rest) * part.size.high for part in moment.parts)
        for moment in now.estimate.moments
    )
    return beside + least <= now.limit.size


# -- report ----------------------------------------------------------------------------------------


class FitReport:
    """A report of whether a model fits into memory, with changes that make it fit; ``print`` it.

    Attributes:
        placement: blocks of the model's operators.
    """

    def __init__(self, answer: Answer, trial: Trial, target: Target):
        self.answer, self.placement = answer, trial.placement
        self._trial, self._target = trial, target
        self._ladder: Ladder | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the model: ``fits``, ``does not fit`` or ``uncertain``."""
        return self.answer.verdict

    @property
    def ladder(self) -> Ladder | None:
        """The cheapest changes that make the model fit, searched on first read; None if it fits."""
        return self._found(silent)

    def _found(self, say: Say) -> Ladder | None:
        if self._ladder is None and self.verdict is not Verdict.FITS:
            self._ladder = Search(self._trial, self.answer, self._target, say).ladder()
        return self._ladder

    def data(self) -> dict[str, Any]:
        """Return a fit report as JSON values; sizes in bytes."""
        changes = None if self.ladder is None else self.ladder.data()
        return {**self.answer.data(), "changes": changes}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text of the verdict, then that of the changes, which take longer to find."""
        yield table(self.answer)
        found = self._found(say)
        if found is not None:
            yield str(found)

    def __str__(self) -> str:
        return "\n".join(self.pieces())


def check(trial: Trial, limit: str | None) -> FitReport:
    """Capture a model, estimate its memory and compare it with a limit.

    The limit is ``cpu``, ``cuda:0`` or a size; by default that of the device.

    Raises:
        LimitError: there is no such limit.
        CaptureError: forward cannot be captured.
    """
    target, _ = build.choose_target()
    device = "cuda:0" if target.device().type == "cuda" else "cpu"
    known = of_machine(limit or device)  # before capture, which takes longer
    estimated = estimate(trial, target)
    programs, counted = trial.captured.programs, trial.module_bytes + trial.batch_bytes
    answer = compare(estimated, known, programs, target, counted=counted)
    return FitReport(answer, trial, target)


def estimate(trial: Trial, target: Target) -> Estimate:
    """Estimate the peak memory of a model's run, and count its FLOPs and bytes."""
    start = requested() or Start(trial.options._start_mode)
    calls = Calls(
        module=trial.module_bytes,
        batch=trial.batch_bytes,
        tiered=start is Start.TIERED,
    )
    return fit.estimate(trial.captured.programs, trial.config, target, calls)
