"""Watchers of a port that look at its models, for stages of ``abele port --ladder``.

``OneRow`` runs the training model with a whole micro-batch and with its first row, and compares
their operations. ``Inference`` compares calls of inference models with the plain models.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele.capture import Call, core
from abele.port.check.watch import Record
from abele.program.core import is_library
from abele.runtime.observers import CallRecord, Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step.config import StepConfig
from abele.warn import user_line

_CALLS = 20  # of inference models that are compared


#: Called with the call, the module, the inputs and the configuration of a captured model.
_Look = Callable[[Call, torch.nn.Module, Sequence[torch.Tensor], StepConfig], None]


def _look_at_captures(look: _Look) -> None:
    """Have a function look at each model that is captured from now on."""
    plain: Any = core.recipe_of

    def shown(call: Call, module: Any, inputs: Any, config: StepConfig, *args: Any, **more: Any):
        look(call, module, inputs, config)
        return plain(call, module, inputs, config, *args, **more)

    setattr(core, "recipe_of", shown)  # noqa: B010 - the process ends with the script


# -- a batch of one row ---------------------------------------------------------------------------


class _Trial(TorchFunctionMode):
    """A run of forward and backward.

    Attributes:
        operations: name, user's line, dimensions and finiteness of each result.
        dimensions: of each output.
        problem: what went wrong, in words.
        line: the user's line that raised an error.
    """

    def __init__(self, call: Call, inputs: Sequence[torch.Tensor]):
        super().__init__()
        self.operations: list[tuple[str, str, int, bool]] = []
        self.dimensions: list[int] = []
        self.problem = self.line = ""
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.filterwarnings("error", message="Using a target size")
                with self:
                    outputs = call([each.clone() for each in inputs])
                total: Any = sum(each.sum() for each in outputs if each.requires_grad)
                if isinstance(total, torch.Tensor):
                    torch.autograd.backward(total)
            self.dimensions = [each.dim() for each in outputs]
            if not all(map(_is_finite, outputs)):
                self.problem = "its results are not all finite"
        except Exception as error:  # noqa: BLE001 - whatever a model raises is recorded
            self.problem = f"{type(error).__name__}: {error}"
            frames = traceback.extract_tb(error.__traceback__)
            for each in frames:
                if not is_library(each.filename):
                    self.line = f"{each.filename}:{each.lineno}: `{each.line}`"

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        """Call a function, and note its name, the user's line and its result."""
        result = func(*args, **(kwargs or {}))
        name = str(getattr(func, "__name__", ""))
        if isinstance(result, torch.Tensor) and not name.startswith("_"):
            self.operations.append((name, user_line(), result.dim(), _is_finite(result)))
        return result


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


class OneRow:
    """Tries a batch of one row with the first training model of a script."""

    def __init__(self, record: Record):
        self._record = record

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Look at all models that are captured."""
        _look_at_captures(self._look)
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Answer that the script trains nothing."""
        self._record.answer(rows=0, problem="", untried="it trains nothing")

    def _look(
        self, call: Call, module: torch.nn.Module, inputs: Sequence[torch.Tensor], step: StepConfig
    ) -> None:
        """Try it, answer, and end the script."""
        if not step.training:
            return
        rows = next((each.shape[0] for each in inputs if each.dim()), 0)
        whole = _Trial(call, inputs)
        if whole.problem or rows < 2:
            untried = "batches have one row" if rows else "the model is given no batch"
            self._record.answer(rows=rows, problem="", untried=whole.problem or untried)
        first = [each[:1] if each.dim() and each.shape[0] == rows else each for each in inputs]
        one = _Trial(call, first)
        problem, name, line = one.problem, "", one.line
        if not problem and one.dimensions != whole.dimensions:
            problem = "a result has lost its dimension of rows"
        if not problem and any(
            each.grad is not None and not _is_finite(each.grad) for each in module.parameters()
        ):
            problem = "a gradient is not finite"
        for mine, other in zip(whole.operations, one.operations, strict=False):
            if mine[2] != other[2] or (mine[3] and not other[3]):
                name, line = mine[0], mine[1]
                break
        self._record.answer(rows=rows, problem=problem, name=name, line=line)


# -- inference models -----------------------------------------------------------------------------


class Inference:
    """Compares the first calls of inference models with plain ones."""

    def __init__(self, record: Record):
        self.record, self.calls = record, 0
        self._captured: tuple[Call, torch.nn.Module] | None = None

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Look at all models that are captured, and observe new sessions."""
        _look_at_captures(self._look)
        return of_new_sessions(self._observer)

    def finish(self) -> None:
        """Answer that all calls were equal."""
        self.record.answer(calls=self.calls, line="")

    def _look(self, call: Call, module: torch.nn.Module, _: object, step: StepConfig) -> None:
        """Note a model that does not train."""
        self._captured = None if step.training else (call, module)

    def _observer(self, session: Session) -> Observer | None:
        captured, self._captured = self._captured, None
        if session.config.training or captured is None:
            return None
        return _Calls(self, *captured)


class _Calls(Observer):
    """Compares each call of a session."""

    def __init__(self, looker: Inference, call: Call, module: torch.nn.Module):
        self._looker, self._call, self._module = looker, call, module
        self._modes = [each.training for each in module.modules()]
        self._outputs: list[torch.Tensor] = []
        self._expected: list[torch.Tensor] = []

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Compute what the plain model does, from the same random numbers."""
        state = torch.get_rng_state()
        # What is captured may be a copy of the user's model, with the same modules inside.
        modes = {each.training for each in self._module.modules() if each is not self._module}
        if len(modes) == 1:
            self._module.training = modes.pop()
        with torch.no_grad():
            self._expected = self._call([each.clone() for each in inputs])
        torch.set_rng_state(state)

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note what the program has returned."""
        self._outputs = [each.detach().clone() for each in outputs]

    def on_call_end(self, call: CallRecord) -> None:
        """Compare them."""
        if call.error is not None:
            return
        self._looker.calls += 1
        if not same_in_order(self._outputs, self._expected):
            same_modes = self._modes == [each.training for each in self._module.modules()]
            mode = "" if same_modes else "train()" if self._module.training else "eval()"
            self._looker.record.answer(calls=self._looker.calls, line=user_line(), mode=mode)
        if self._looker.calls >= _CALLS:
            self._looker.finish()


def same_in_order(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Return whether a program has returned what was expected; constants are no outputs of it."""
    others = iter(expected)
    return all(
        any(
            each.shape == other.shape
            and each.dtype is other.dtype
            and torch.allclose(each, other, rtol=0, atol=0, equal_nan=True)
            for other in others
        )
        for each in outputs
    )
