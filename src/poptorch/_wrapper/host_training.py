"""Training steps that ran on the host although the model is wrapped for a device.

``executor.to(device)`` returns the plain module, as in the original, and a loop that goes on with
it trains on the host without a word. Here each wrapped module has a watch. A step is a forward
outside the executor, with gradients enabled, after which a parameter gets a gradient or an
optimizer of torch makes a step. The first one is announced with its line, and all are counted
until the end of the process. Calls of the executor pass none of this.
"""

import atexit
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from abele.capture.gradient_hooks import internal
from abele.warn import user_line
from poptorch import optim
from poptorch._forward.running import capturing
from poptorch._logging import logger

# Methods of a module that return the module, so that an assignment loses the executor.
_CASTS = ("to", "to_empty", "cpu", "cuda", "float", "double", "half", "bfloat16", "type")
_RETURN_SELF = frozenset((*_CASTS, "train", "eval", "requires_grad_", "apply", "share_memory"))
_active: "weakref.WeakSet[HostTraining]" = weakref.WeakSet()
_seen: "list[HostTraining]" = []  # those that have counted something


class HostTraining:
    """The watch of one training wrapper; it outlives the wrapper as long as the module does.

    Args:
        executor: the wrapper.
        name: the class of its model.
        options: of the wrapper.

    Attributes:
        steps: how many there were.
        target: where steps should have run, once that is known.
    """

    def __init__(self, executor: Any, name: str, options: Any):
        self._executor, self._name, self.options = weakref.ref(executor), name, options
        self.steps = 0
        self.target: str | None = None
        self._first = self._way = ""
        self._forward = ""  # line of a forward that no gradient has followed yet
        self._parameters: set[int] = set()
        self._handles: list[RemovableHandle] = []

    def begin(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Watches these parameters; they are plain ones still."""
        self.end()
        if not self.options._host_training_warning:
            return
        for parameter in parameters:
            self._parameters.add(id(parameter))
            if parameter.requires_grad and parameter.is_leaf:
                register = parameter.register_post_accumulate_grad_hook
                self._handles.append(register(self._note_gradient))
        _active.add(self)

    def end(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._parameters.clear()
        self._forward = ""
        _active.discard(self)

    def note_method(self, name: str) -> None:
        """Somebody asks the executor for a method of its model."""
        if name in _RETURN_SELF and not self._way:
            self._way = f"executor.{name}() returned the plain module at {user_line()}"

    def note_forward(self) -> None:
        """Somebody runs the model's forward outside of a capture."""
        if self in _active and torch.is_grad_enabled() and capturing() is None:
            # The line is wanted once; finding it takes longer than noting that there was one.
            self._forward = user_line() if not self.steps else "later"

    @internal
    def _note_gradient(self, parameter: torch.Tensor) -> None:
        del parameter
        if self._forward:
            self._count()

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record an optimizer step on the host."""
        if self._forward and any(
            id(parameter) in self._parameters and parameter.grad is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        ):
            self._count()

    def _count(self) -> None:
        line, self._forward = self._forward, ""
        executor = self._executor()
        if executor is None and self.target is not None:
            return  # it has trained on its device and is gone: the rest is the host's
        self.steps += 1
        if self.steps == 1:
            self._first = line
            _seen.append(self)
            logger.warning(
                "%s Call what poptorch.trainingModel returned, or destroy() it to go on with the "
                "host alone; options.hostTrainingWarning(False) turns this warning off.",
                self.sentence(),
            )

    def sentence(self) -> str:
        """Record of device and host steps."""
        steps = "A training step" if self.steps == 1 else f"{self.steps} training steps"
        target = "the device" if self.target is None else f"target {self.target}"
        why = f", since {self._way}" if self._way else ""
        return (
            f"{steps} of {self._name} ran on the host, not on {target}{why}. Forward was called "
            f"outside the executor, with gradients, at {self._first}."
        )


@internal
def _note_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not isinstance(optimizer, optim.Optimizer):
        for watch in tuple(_active):
            watch.note_step(optimizer)


def _summarise() -> None:
    """Log the final counts at the end of the process."""
    for watch in _seen:
        logger.warning("%s", watch.sentence())


register_optimizer_step_post_hook(_note_step)
atexit.register(_summarise)
