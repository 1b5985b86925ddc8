"""Tries whether the training model computes loss and gradients of a batch of one row.

It runs in the process of the port, on the host, once with the rows of a micro-batch and once with
the first of them. The operations of both are compared: where the second has lost a dimension, or
has no numbers any longer, is the line to mend.
"""

from __future__ import annotations

import dataclasses
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele.capture import Call
from abele.port.check.watch import LinesOfParameters
from abele.port.rungs import process
from abele.program.core import is_library
from abele.step.config import StepConfig
from abele.warn import user_line


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of forward.

    Attributes:
        name: of the function.
        line: the user's.
        input_shape: shape of its first tensor.
        result_shape: shape of its result.
        finite: its result has numbers only.
    """

    name: str
    line: str
    input_shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    finite: bool


class _Operations(TorchFunctionMode):
    """Notes operations that return one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Operation] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        del types
        result = func(*args, **(kwargs or {}))
        name = str(getattr(func, "__name__", ""))
        if isinstance(result, torch.Tensor) and not name.startswith("_"):
            first = next((each for each in args if isinstance(each, torch.Tensor)), result)
            finite = bool(result.isfinite().all()) if result.is_floating_point() else True
            shapes = tuple(first.shape), tuple(result.shape)
            self.noted.append(Operation(name, user_line(), *shapes, finite))
        return result


@dataclasses.dataclass
class _Run:
    """What one run of forward and backward did."""

    operations: list[Operation] = dataclasses.field(default_factory=list[Operation])
    shapes: list[tuple[int, ...]] = dataclasses.field(default_factory=list[tuple[int, ...]])
    problem: str = ""
    line: str = ""
    module: str = ""


class Looker:
    """Tries a batch of one row with the first training model of a script."""

    def __init__(self) -> None:
        self.lines = LinesOfParameters()

    def look(
        self, call: Call, module: torch.nn.Module, inputs: Sequence[torch.Tensor], step: StepConfig
    ) -> None:
        """Try it, tell, and end the script.

        Raises:
            Seen: it is a training model.
        """
        if not step.training:
            return
        rows = next((each.shape[0] for each in inputs if each.dim()), 0)
        first = [each[:1] if each.dim() and each.shape[0] == rows else each for each in inputs]
        whole = self._run(call, module, inputs)
        if whole.problem or rows < 2:
            untried = "batches have one row" if rows else "the model is given no batch"
            process.tell(rows=rows, problem="", untried=whole.problem or untried)
        else:
            process.tell(rows=rows, **_compared(whole, self._run(call, module, first)))
        raise process.Seen

    def _run(self, call: Call, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> _Run:
        run, operations = _Run(), _Operations()
        inside: list[torch.nn.Module] = []

        def left(module: torch.nn.Module, args: Any, result: Any) -> None:
            del module, args, result
            inside.pop()

        handles = [
            hook
            for each in module.modules()
            for hook in (
                each.register_forward_pre_hook(lambda entered, _: inside.append(entered)),
                each.register_forward_hook(left),
            )
        ]
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.filterwarnings("error", message="Using a target size")
                with operations:
                    outputs = call([each.clone() for each in inputs])
                _differentiate(outputs)
            run.shapes = [tuple(each.shape) for each in outputs]
            run.problem = _without_numbers(module, outputs)
        except Exception as error:  # noqa: BLE001 - whatever a model raises is to be told
            run.problem = f"{type(error).__name__}: {error}"
            run.line = _line_of(error)
            run.module = self._made(inside[-1]) if inside else ""
        finally:
            for handle in handles:
                handle.remove()
        run.operations = operations.noted
        return run

    def _made(self, module: torch.nn.Module) -> str:
        """The line that made a module, if it has parameters of its own."""
        parameter = next(module.parameters(recurse=False), None)
        return "" if parameter is None else self.lines.of(parameter)


def _differentiate(outputs: Sequence[torch.Tensor]) -> None:
    total: Any = sum(each.sum() for each in outputs if each.requires_grad)
    if isinstance(total, torch.Tensor):
        torch.autograd.backward(total)


def _without_numbers(module: torch.nn.Module, outputs: Sequence[torch.Tensor]) -> str:
    """What has no numbers, in words."""
    if not all(each.isfinite().all() for each in outputs if each.is_floating_point()):
        return "its results are not all finite"
    for name, each in module.named_parameters():
        if each.grad is not None and not each.grad.isfinite().all():
            return f"the gradient of {name} is not finite"
    return ""


def _line_of(error: BaseException) -> str:
    """The user's line that raised an error."""
    lines = [
        f"{each.filename}:{each.lineno}: `{each.line}`"
        for each in traceback.extract_tb(error.__traceback__)
        if not is_library(each.filename)
    ]
    return lines[-1] if lines else ""


def _compared(whole: _Run, one: _Run) -> dict[str, Any]:
    """What to tell of both runs."""
    problem = one.problem
    shapes = zip(whole.shapes, one.shapes, strict=False)
    if not problem and any(len(mine) != len(other) for mine, other in shapes):
        problem = "a result has lost its dimension of rows"
    cause = next(
        (
            (mine, other)
            for mine, other in zip(whole.operations, one.operations, strict=False)
            if len(mine.result_shape) != len(other.result_shape)
            or (mine.finite and not other.finite)
        ),
        None,
    )
    facts = {"problem": problem, "line": one.line, "module": one.module}
    if cause is not None:
        mine, other = cause
        facts |= {"line": mine.line, "name": mine.name, "taken": mine.input_shape}
        facts |= {"lost": len(mine.result_shape) != len(other.result_shape)}
    return facts


def main(script: str, *arguments: str) -> None:
    """Run a port up to its first training model."""
    looker = Looker()
    if process.runs_to_its_end(script, arguments, looker.look, looker.lines.noting()):
        process.tell(rows=0, problem="", untried="it trains nothing")


if __name__ == "__main__":
    main(*sys.argv[1:])
