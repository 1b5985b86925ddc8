"""Changes to a program that make it need less memory, each as a trial that can be captured.

Only what is honoured here is offered, and only what leaves the numbers of an update alone, but for
half precision and batch norms, of which the change says so.
"""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from abele.step.config import OutputMode, Reduction
from poptorch._fit.trial import Trial
from poptorch._forward import recomputation

_HOOK = "lambda module, inputs, output: poptorch.recomputationCheckpoint(output)"
#: What half leaves of numbers in float32.
HALF = 0.5
#: Why changes that the original has are not among these.
NOT_OFFERED = (
    "TensorLocations.setOptimizerLocation: there is one memory here, so it has no effect",
    "poptorch.BeginBlock: stages of a pipeline share the memory of one device here",
)


class NotOffered(Exception):
    """A change cannot be made to a program; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A change to a program.

    Attributes:
        name: in words.
        lines: of Python, to add to the program.
        trial: the program with the change.
        around: has to be open for the trial's module while that is captured.
        warning: what else it changes, or empty.
        timed: the model of stages says how long a step takes with it.
        least: the shares that at least remain of what always lives, and of the rest.
    """

    name: str
    lines: tuple[str, ...]
    trial: Trial
    around: Callable[[torch.nn.Module], contextlib.AbstractContextManager[Any]] = (
        contextlib.nullcontext
    )
    warning: str = ""
    timed: bool = True
    least: tuple[float, float] = (1.0, 0.0)


#: Ways to change a program, each from the least change to the most.
Ways = Callable[[Trial], Iterator[Change]]


def smaller_micro_batches(trial: Trial) -> Iterator[Change]:
    """Half the rows at a time, a quarter, and so on, down to one.

    Raises:
        NotOffered: results would be others.
    """
    config, rows = trial.config, trial.micro_batch_rows
    if config.training and config.reduction is not Reduction.MEAN:
        raise NotOffered("smaller micro-batches: gradients are summed, so an update would change")
    if not config.training and config.output_mode is not OutputMode.ALL:
        raise NotOffered("smaller micro-batches: only OutputMode.All returns the results of all")
    field = "gradient_accumulation" if config.training else "device_iterations"
    setter = "Training.gradientAccumulation" if config.training else "deviceIterations"
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
    """Keep what passes between modules, and compute what they do inside again in backward.

    Raises:
        NotOffered: there are no modules in a row, or the options forbid it.
    """
    if not recomputation.is_on(trial.options, training=trial.config.training):
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
    """The module with most children that have children, or else with most children."""
    several = [(path, list(each.children())) for path, each in module.named_modules()]

    def deep(blocks: list[torch.nn.Module]) -> int:
        return sum(1 for block in blocks if next(block.children(), None) is not None)

    return max(several, key=lambda each: (deep(each[1]), len(each[1])))


@contextlib.contextmanager
def _hooked(path: str, module: torch.nn.Module) -> Iterator[None]:
    handles = [
        block.register_forward_hook(
            lambda module, inputs, output: recomputation.recomputationCheckpoint(output)
        )
        for block in module.get_submodule(path).children()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def halved(trial: Trial) -> Iterator[Change]:
    """Weights and inputs in half.

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
