"""Blocks that begin the stages of a plan: as lines of a program, and on the modules themselves."""

import contextlib
import keyword
from collections.abc import Iterator

import torch

from abele.stage import Plan
from poptorch._error import error
from poptorch._forward.blocks import BeginBlock, removeBlocks, without_blocks
from poptorch.options import Options, PipelinedExecution, ShardedExecution


def lines(plan: Plan, model: torch.nn.Module) -> list[str]:
    """The lines that a program needs for the stages of a plan; the model is called ``model``.

    None of them lowers a number of micro-batches: the rows of a call depend on it.
    """
    begins = [
        f'poptorch.BeginBlock({expression(model, path)}, "{name}", ipu_id={home})'
        for path, name, home in _begins(plan)
    ]
    devices = max(plan.homes) + 1
    if devices & (devices - 1):
        begins.append(f"options.autoRoundNumIPUs(True)  # {devices} is no power of two")
    if plan.stages > 1 and plan.micro_batches < plan.needed_micro_batches:
        setter = "Training.gradientAccumulation" if plan.chain.training else "deviceIterations"
        begins.append(
            f"options.{setter}({plan.needed_micro_batches})  # or more; {plan.micro_batches} now"
        )
    return begins


def _begins(plan: Plan) -> list[tuple[str, str, int]]:
    """Path of the module, name and device of each stage but the first, where forward starts."""
    stages = zip(plan.names, plan.homes, strict=True)
    return [(path, f"stage{n}", home) for n, (path, home) in enumerate(stages) if n]


def expression(model: torch.nn.Module, path: str) -> str:
    """The module at a path as Python: ``model.layers[3]``."""
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
    """Begin a block at each stage of a plan, in the place of those that modules begin now."""
    removeBlocks(model)
    _begin(plan, model)


def _begin(plan: Plan, model: torch.nn.Module) -> None:
    for path, name, home in _begins(plan):
        BeginBlock(model.get_submodule(path), name, ipu_id=home)


@contextlib.contextmanager
def applied(plan: Plan | None, model: torch.nn.Module) -> Iterator[None]:
    """While open, the blocks of ``model`` are those of a plan, if there is one."""
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
        option = "Training.gradientAccumulation" if plan.chain.training else "deviceIterations"
        raise error(
            f"{plan.stages} stages need {plan.needed_micro_batches} micro-batches to work at the "
            f"same time, and options.{option} is {plan.micro_batches}. Set it to "
            f"{plan.needed_micro_batches} or more, or ask for fewer stages."
        )
