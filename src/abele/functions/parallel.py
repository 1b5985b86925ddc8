"""``DistributedDataParallel`` in traced functions: its exchange becomes calls of the program.

    model(x).sum().backward()   ->   buffers = exchange(buffers), forward, backward,
                                     grads = exchange(grads)

Torch's own reducer makes each call when the program runs. So the calls of a process are the same,
and in the same order, whether it runs a program or plain PyTorch: processes need not agree on which
of them has a program, and a capture, a comparison or a compilation makes no call.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from abele import _torch
from abele._torch import replicas
from abele._torch.distributed_tensors import is_sharded
from abele._torch.replaced import Function, replaced
from abele.errors import CaptureError
from abele.functions.state import NotYetError, Reached
from abele.ops.host_call import HostCalls, exchange
from abele.program.core import line_of
from abele.trace.module_state import named_modules
from abele.warn import user_line

# Classes of modules whose parameters are whole tensors at some times only.
_DIVIDED = frozenset({"FSDPModule", "FullyShardedDataParallel", "DataParallel"})
_PLAIN = "Or compile the network inside by torch.compile(network, backend='abele')."


class Replicas:
    """The models in ``DistributedDataParallel`` that a function reaches.

    Args:
        reached: what the function reaches.

    Attributes:
        calls: the functions that the program calls.
    """

    def __init__(self, reached: Reached):
        self.calls = HostCalls()
        self._models: dict[int, tuple[str, DistributedDataParallel]] = {}
        self._awaiting: dict[int, list[torch.Tensor]] = {}  # models whose backward exchanges
        self._token = torch.empty(0)
        for _, module in reached.modules.values():
            for _, each in named_modules(module):
                self._add(each)
        devices = [p.device for _, each in self._models.values() for p in each.parameters()]
        if devices:  # the calls read and write it, which keeps them, and in their order
            self._token = torch.zeros((), dtype=torch.int64, device=devices[0])

    def _add(self, module: torch.nn.Module) -> None:
        kinds = [kind.__name__ for kind in type(module).__mro__]
        if not _DIVIDED.isdisjoint(kinds) or is_sharded(module):
            raise CaptureError(
                f"The function reaches a {kinds[0]} whose state is divided over devices or "
                "processes (fully_shard, tensor parallelism, DataParallel); a program has all of "
                "it. Use DistributedDataParallel, or leave this step plain."
            )
        if not isinstance(module, DistributedDataParallel) or id(module) in self._models:
            return
        setting = replicas.refused(module)
        if setting is not None:
            raise CaptureError(
                f"The function reaches a DistributedDataParallel with {setting}, which a program "
                f"does not follow. {_PLAIN}"
            )
        if not replicas.settle(module):
            raise NotYetError("A DistributedDataParallel has exchanged no gradients yet.")
        self._models[id(module)] = f"model{len(self._models)}", module

    @contextlib.contextmanager
    def replaced(self) -> Generator[None]:
        """Trace forwards and backwards with their exchanges, in a ``with`` block of this thread.

        Raises:
            CaptureError: the program would not exchange what the function does.
        """

        def forward(original: Function, model: Any, *args: Any, **kwargs: Any) -> Any:
            self._begin(model)
            return model.module(*args, **kwargs)

        def backward(original: Function, *args: Any, **kwargs: Any) -> None:
            with self._exchanging():
                original(*args, **kwargs)

        forwards = DistributedDataParallel, "forward", forward
        finds = any(each.find_unused_parameters for _, each in self._models.values())
        unmarked = replicas.Unmarked() if finds else contextlib.nullcontext()
        with replaced(forwards, (torch.autograd, "backward", backward)), unmarked:
            yield
        for node in reversed(_torch.traced_nodes()):
            if "c10d" in str(node.target):
                raise CaptureError(
                    f"The function exchanges tensors with other processes itself{line_of(node)}. A "
                    "program exchanges the gradients and buffers of DistributedDataParallel: do "
                    "the rest outside of the function."
                )

    def _begin(self, model: DistributedDataParallel) -> None:
        """Trace the calls before a forward."""
        if id(model) not in self._models:
            raise CaptureError(
                f"A DistributedDataParallel is made and called at {user_line()}. Make it outside "
                "of the function."
            )
        grad, sync = torch.is_grad_enabled(), bool(model.require_backward_grad_sync)
        if grad and not sync and model.find_unused_parameters:
            raise CaptureError(
                f"A DistributedDataParallel with find_unused_parameters=True is called in no_sync, "
                f"at {user_line()}, and has to note which parameters are used. {_PLAIN}"
            )
        buffers = replicas.buffers_of(model)
        function = functools.partial(_forward, model, grad, sync)
        found = self._exchanged(model, "forward", function, buffers)
        replicas.write(buffers, found)
        if grad and sync:
            with _torch.outside_the_trace():
                self._awaiting[id(model)] = replicas.exchanged_params(model)

    @contextlib.contextmanager
    def _exchanging(self) -> Generator[None]:
        """Exchange gradients after the backward that a ``with`` block calls."""
        touched: set[int] = set()

        def touch(param: torch.Tensor) -> None:
            touched.add(id(param))

        params: list[Any] = [param for each in self._awaiting.values() for param in each]
        handles = [param.register_post_accumulate_grad_hook(touch) for param in params]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for key in list(self._awaiting):
            count = sum(id(param) in touched for param in self._awaiting[key])
            if count:
                self._average(self._models[key][1], self._awaiting.pop(key), count)

    def _average(
        self, model: DistributedDataParallel, params: Sequence[torch.Tensor], count: int
    ) -> None:
        """Trace the exchange that ends a backward."""
        if count < len(params):
            raise CaptureError(
                f"A backward gives {count} of {len(params)} parameters of a "
                f"DistributedDataParallel a gradient, at {user_line()}, and a program exchanges "
                "those of all. Compute a loss of all parameters, or freeze the others before it is "
                f"made. {_PLAIN}"
            )
        grads: list[Any] = [param.grad for param in params]
        function = functools.partial(_backward, model, params)
        found = self._exchanged(model, "backward", function, grads)
        with torch.no_grad():
            for grad, value in zip(grads, found, strict=True):
                grad.copy_(value)

    def _exchanged(
        self, model: DistributedDataParallel, what: str, function: Any, values: Sequence[Any]
    ) -> Sequence[torch.Tensor]:
        """Trace one call; return the tensors in place of those that it is given."""
        name = f"{self._models[id(model)][0]}.{what}{len(self.calls.functions)}"
        self.calls.functions[name] = function
        with torch.no_grad():
            token, *found = exchange([self._token, *values], None, name)
            self._token.copy_(token)
        return found


def _forward(
    model: DistributedDataParallel, grad: bool, sync: bool, values: list[torch.Tensor]
) -> list[torch.Tensor]:
    values = [value.clone() for value in values]
    replicas.begin_forward(model, values[1:], grad=grad, sync=sync)
    return values


def _backward(
    model: DistributedDataParallel, params: Sequence[torch.Tensor], values: list[torch.Tensor]
) -> list[torch.Tensor]:
    token, *grads = values
    return [token.clone(), *replicas.averaged(model, params, grads)]
