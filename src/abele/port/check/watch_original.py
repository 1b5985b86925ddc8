"""Watches a script of plain PyTorch, by hooks that torch offers and two functions that are wrapped.

A step ends with ``optimizer.step()``. A script without an optimizer updates its parameters by hand;
there a step ends where the next backward begins.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from abele.port.check.channel import BUFFER, PARAMETER, Channel, described, numbers
from abele.port.check.cuda import cuda_is_the_host
from abele.port.check.watch import LinesOfParameters, Watch
from abele.warn import user_line


class Original(Watch):
    """Watches the updates of a script."""

    def __init__(self, channel: Channel, steps: int):
        super().__init__(channel, steps)
        self._lines = LinesOfParameters()
        self._tensors: dict[str, torch.Tensor] = {}
        self._kinds: dict[str, str] = {}
        self._roots: list[torch.nn.Module] = []
        self._depth = 0
        self._inputs: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._line = ""
        self._started = False
        self._has_optimizer = False

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, the script is watched."""
        handles: list[Any] = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_post_hook(self._after_update),
        ]
        optimizer = wrapped(torch.optim.Optimizer, "__init__", self._optimizer_made)
        backward = wrapped(torch.autograd, "backward", self._before_backward)
        try:
            host = cuda_is_the_host(self.channel)
            with self._lines.noting(), optimizer, backward, host:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Tell the last step of a script without an optimizer."""
        if not self._has_optimizer and self._losses:
            self._end_step()

    # -- forward ---------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        if (
            self._depth > 1
            or not torch.is_grad_enabled()
            or next(module.parameters(), None) is None
        ):
            return
        if not any(each is module for each in self._roots):
            self._roots.append(module)
            self._add_module(module)
            if self._started:
                self._tell_model()
        self._inputs += [described(each) for each in args if isinstance(each, torch.Tensor)]

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        del module, args, result
        self._depth = max(0, self._depth - 1)

    # -- backward and updates ----------------------------------------------------------------

    def _before_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        losses: list[torch.Tensor] = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        if not self._has_optimizer and self._losses:
            inputs, self._inputs = self._inputs, []  # they belong to the step that begins
            self._end_step()
            self._inputs = inputs
        if not self._started:
            self._start(losses)
        self._losses += [number for loss in losses for number in numbers(loss)]
        self._line = user_line()

    def _optimizer_made(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._has_optimizer = True

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        if self._started:
            self._end_step()

    def _end_step(self) -> None:
        losses, inputs = self._losses, self._inputs
        self._losses, self._inputs = [], []
        # The next forward of a script without optimizer has written its buffers already.
        self.updated(self._tensors if self._has_optimizer else self._parameters())
        self.tell_step(self.step, losses, inputs, self._line)
        self.stop_if_enough()

    # -- state -------------------------------------------------------------------------------

    def _start(self, losses: list[torch.Tensor]) -> None:
        """Tell parameters before the first update; buffers may have changed in forward."""
        self._started = True
        for number, leaf in enumerate(leaves(losses)):
            self._add(f"tensor{number}", leaf, PARAMETER)
        self._tell_model()
        self.channel.state(0, self._parameters())
        if not self._has_optimizer:
            self.channel.send(
                "note", text="the original updates by hand, so its buffers were not compared"
            )

    def _parameters(self) -> dict[str, torch.Tensor]:
        kinds = self._kinds
        return {name: t for name, t in self._tensors.items() if kinds[name] == PARAMETER}

    def _tell_model(self) -> None:
        lines = {name: self._lines.of(tensor) for name, tensor in self._tensors.items()}
        self.channel.model(self._tensors, self._kinds, lines)

    def _add_module(self, module: torch.nn.Module) -> None:
        prefix = type(module).__name__
        for kind, tensors in (
            (PARAMETER, module.named_parameters()),
            (BUFFER, module.named_buffers()),
        ):
            for name, tensor in tensors:
                self._add(name if name not in self._tensors else f"{prefix}.{name}", tensor, kind)

    def _add(self, name: str, tensor: torch.Tensor, kind: str) -> None:
        if not any(each is tensor for each in self._tensors.values()):
            self._tensors[name], self._kinds[name] = tensor, kind


def leaves(losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that losses are differentiated by, in the order in which they are reached."""
    waiting: list[Any] = [loss.grad_fn for loss in losses]
    seen: set[Any] = set()
    reached: list[torch.Tensor] = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            reached.append(node.variable)
        waiting += [source for source, _ in reversed(node.next_functions)]
    return reached


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
