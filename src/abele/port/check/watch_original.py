"""Watches a script of plain PyTorch, by hooks that torch offers and two functions that are wrapped.

A step ends with ``optimizer.step()``. A script without an optimizer updates its parameters by hand;
there a step ends where the next backward begins.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from abele.port.check.channel import Channel, described, numbers
from abele.port.check.cuda import cuda_is_the_host
from abele.port.check.trained import Backward, Trained, leaves, taking_part
from abele.port.check.watch import LinesOfParameters, Watch
from abele.warn import user_line


class Original(Watch):
    """Watches the updates of a script."""

    def __init__(self, channel: Channel, steps: int):
        super().__init__(channel, steps)
        self._lines = LinesOfParameters()
        self._models: list[Trained] = []
        self._optimizers = Optimizers()
        self._roots: list[torch.nn.Module] = []
        self._depth = 0
        self._inputs: list[dict[str, Any]] = []
        self._waiting: list[Backward] = []  # for an update

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, the script is watched."""
        handles: list[Any] = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        optimizer = wrapped(torch.optim.Optimizer, "__init__", self._optimizers.made)
        backward = wrapped(torch.autograd, "backward", self._before_backward)
        try:
            host = cuda_is_the_host(self.channel)
            with self._lines.noting(), optimizer, backward, host:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Tell the last step of a script without an optimizer, and what made no update."""
        if not self._optimizers and self._waiting:
            self._update_by_hand()
        self._tell_unused()

    # -- forward ---------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        if (
            self._depth > 1
            or not torch.is_grad_enabled()
            or next(module.parameters(), None) is None
        ):
            return
        self._roots.append(module)
        self._inputs += [described(each) for each in args if isinstance(each, torch.Tensor)]

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        del module, args, result
        self._depth = max(0, self._depth - 1)

    # -- backward and updates ----------------------------------------------------------------

    def _before_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        losses: list[torch.Tensor] = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        reached = leaves(losses)
        call = Backward(
            losses=tuple(number for loss in losses for number in numbers(loss)),
            leaves=tuple(reached),
            roots=tuple(taking_part(self._roots, reached)),
            inputs=tuple(self._inputs),
            line=user_line(),
        )
        self._roots, self._inputs = [], []
        by_hand = not self._optimizers
        if by_hand and self._waiting:
            self._update_by_hand()
        self._waiting.append(call)
        if by_hand:
            self._model_by_hand([call])

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Take what an optimizer is about to use: calls that give its tensors gradients."""
        del args, kwargs
        tensors = of_optimizer(optimizer)
        mine = [call for call in self._waiting if call.reaches(tensors)] or self._waiting
        self._waiting = [call for call in self._waiting if not any(call is each for each in mine)]
        model = self._optimizers.model_of(optimizer)
        if model is None:
            if not mine:
                return  # an update without gradients, which some make before a scheduler
            model = self._model_of([root for call in mine for root in call.roots])
        known = model.number < len(self.updates)
        if model.add(mine) or not known:
            self._tell_model(model, model.name(tensors))
        if not known:
            self._begin(model)
        self._optimizers.uses(optimizer, model, mine)

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        model = self._optimizers.model_of(optimizer)
        if model is not None:
            self._end_step(model, self._optimizers.used(optimizer), model.tensors)

    def _end_step(
        self, model: Trained, calls: Sequence[Backward], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.updated(model.number, tensors)
        if self.made >= self.steps:
            self._tell_unused()
        losses = [number for call in calls for number in call.losses]
        inputs = [each for call in calls for each in call.inputs]
        line = calls[-1].line if calls else user_line()
        self.tell_step(model.number, self.updates[model.number], losses, inputs, line)
        self.stop_if_enough()

    # -- models ------------------------------------------------------------------------------

    def _model_of(self, roots: Sequence[torch.nn.Module]) -> Trained:
        """The model with these modules, which another optimizer may have trained before."""
        for model in self._models:
            if model.consists_of(roots):
                return model
        self._models.append(Trained(len(self._models)))
        return self._models[-1]

    def _begin(self, model: Trained) -> None:
        """Tell parameters before the first update; buffers may have changed in forward."""
        self.updates.append(0)
        self.channel.state(model.number, 0, model.parameters())

    def _tell_model(self, model: Trained, name: str) -> None:
        lines = model.lines(self._lines)
        self.channel.model(model.number, name, model.tensors, model.kinds, lines)

    def _tell_unused(self) -> None:
        compared = {id(each) for model in self._models for each in model.tensors.values()}
        for line in self._optimizers.unused(compared):
            self.channel.send("note", text=f"the optimizer of {line} made no update in these steps")

    # -- updates by hand -----------------------------------------------------------------------

    def _model_by_hand(self, calls: Sequence[Backward]) -> None:
        """A script without an optimizer trains one model, with all that it calls."""
        if not self._models:
            self._models.append(Trained(0))
        model = self._models[0]
        if model.add(calls) or not self.updates:
            self._tell_model(model, model.name([]))
        if not self.updates:
            self._begin(model)
            self.channel.send(
                "note", text="the original updates by hand, so its buffers were not compared"
            )

    def _update_by_hand(self) -> None:
        """End a step where the next backward begins: buffers are of its forward already."""
        calls, self._waiting = self._waiting, []
        self._end_step(self._models[0], calls, self._models[0].parameters())


class Optimizers:
    """The optimizers of a script, with the models that they train."""

    def __init__(self) -> None:
        self._lines: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakKeyDictionary[Any, Trained] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, list[Backward]] = weakref.WeakKeyDictionary()
        self._any = False

    def __bool__(self) -> bool:
        """Whether the script has made one."""
        return self._any

    def made(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Note one that is being made."""
        del args, kwargs
        self._any = True
        self._lines[optimizer] = user_line()

    def model_of(self, optimizer: Any) -> Trained | None:
        """The model that it has updated."""
        return self._models.get(optimizer)

    def uses(self, optimizer: Any, model: Trained, calls: list[Backward]) -> None:
        """Note what it updates next, with the gradients of which calls."""
        self._models[optimizer], self._calls[optimizer] = model, calls

    def used(self, optimizer: Any) -> list[Backward]:
        """The calls of its latest update."""
        return self._calls.get(optimizer, [])

    def unused(self, compared: Container[int]) -> list[str]:
        """The lines that made those without an update whose tensors nothing else has updated.

        Args:
            compared: ids of the tensors of models that were updated.
        """
        return [
            line
            for optimizer, line in self._lines.items()
            if optimizer not in self._models
            and (tensors := of_optimizer(optimizer))
            and not any(id(each) in compared for each in tensors)
        ]


def of_optimizer(optimizer: Any) -> list[torch.Tensor]:
    """The tensors that it updates."""
    groups = getattr(optimizer, "param_groups", ())  # none where its construction has failed
    return [each for group in groups for each in group["params"]]


@contextlib.contextmanager
def wrapped(owner: Any, name: str, before: Callable[..., None]) -> Generator[None]:
    """While open, a function of torch calls another one first, with its arguments."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def both(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return plain(*args, **kwargs)

    setattr(owner, name, both)
    try:
        yield
    finally:
        setattr(owner, name, plain)
