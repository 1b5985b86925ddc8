"""Host callbacks: Python code that a compiled program calls on the host while it runs."""

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from abele.ops.host_call import HostCalls, described, host_call
from poptorch._error import error
from poptorch._forward import blocks, structure
from poptorch._logging import logger

_calls: contextvars.ContextVar["CapturedCalls | None"] = contextvars.ContextVar(
    "host_calls", default=None
)


class CPU:
    """A host callback: a Python callable that the compiled program calls each time it runs.

    It may do what a program cannot: branch on values, print, use other libraries. It runs once per
    micro-batch and replica, and once with zeros while the program is captured, which tells the
    shapes and types of its results; those must be the same every time. No gradient flows through
    it: when training, its results are constants. A call whose results nothing reads is left out,
    like a print. Outside of a wrapper it is simply called.

    Differs from the original: also works when training; arguments that are not tensors are passed
    on as they were at capture.

    Args:
        layer_to_call: function or module; of a module, ``requires_grad`` is switched off.
        ID: name of the call, unlike any other in the model.

    Attributes:
        inputs: tensors of the latest call.
        outputs: tensors it returned.
        in_shapes: shapes of ``inputs``.
        out_shapes: shapes of ``outputs``.

    Raises:
        poptorch.Error: not a callable, or an ID that is no text.
    """

    def __init__(self, layer_to_call: Callable, ID: str):
        if not callable(layer_to_call):
            raise error(f"poptorch.CPU was given {layer_to_call!r}, which cannot be called.")
        if not isinstance(ID, str) or not ID:
            raise error(f"The ID of a poptorch.CPU must be a text that is not empty, found {ID!r}.")
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer, self._id = layer_to_call, ID
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.in_shapes: list[torch.Size] = []
        self.out_shapes: list[torch.Size] = []
        self._rebuild: Callable[[Sequence[torch.Tensor]], Any] | None = None

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        """Call the host function: now on the host, or whenever the program being captured runs.

        Args:
            input: tensors, or containers of them; other values are constants.
            kwargs: tensors, containers or constants by name.

        Returns:
            One tensor, or a list of several.
        """
        calls = _calls.get()
        if calls is None:
            return self._layer(*input, **kwargs)
        arguments = [list(input), kwargs]
        recorded = structure.record(arguments)
        tensors = list(structure.tensors(arguments, recorded))
        self._rebuild = lambda values: structure.rebuild(recorded, iter(values))
        kinds = [(tuple(each.shape), each.dtype) for each in tensors]
        with calls.original_state():
            _on_the_host(lambda: self._try(kinds))
        results = host_call(tensors, self.registerPersistentData(), described(self.outputs))
        if any(each.requires_grad for each in tensors):
            logger.warning("No gradient flows through poptorch.CPU %r.", self._id)
        return results[0] if len(results) == 1 else results

    def _try(self, kinds: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> None:
        self.inputs = [torch.zeros(shape, dtype=dtype) for shape, dtype in kinds]
        self.execute()
        if not self.outputs:
            raise error(f"poptorch.CPU {self._id!r} returned no tensor. Return at least one.")

    def execute(self) -> None:
        """Call the host function on ``inputs`` and store its result tensors in ``outputs``."""
        assert self._rebuild is not None, "execute() needs a call in forward first"
        positional, keywords = self._rebuild(self.inputs)
        with torch.no_grad():
            returned = self._layer(*positional, **keywords)
        outputs = list(returned) if isinstance(returned, list | tuple) else [returned]
        if not all(isinstance(each, torch.Tensor) for each in outputs):
            raise error(
                f"poptorch.CPU {self._id!r} returned {[type(each).__name__ for each in outputs]}. "
                "Return a tensor, or a list or tuple of tensors."
            )
        self.outputs = outputs
        self.in_shapes = [each.shape for each in self.inputs]
        self.out_shapes = [each.shape for each in outputs]

    def registerPersistentData(self) -> str:
        """Register the latest host call with the program being captured; return its name."""
        calls = _calls.get()
        if calls is None:
            raise error("registerPersistentData() has no meaning outside of a wrapped forward.")
        rebuild = self._rebuild

        def run(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
            self.inputs, self._rebuild = inputs, rebuild
            self.execute()
            return self.outputs

        return calls.add(self, self._id, run)


class CapturedCalls(HostCalls):
    """The host callbacks of a program: registered during capture, called at run time."""

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self._module = module
        self._owners: dict[str, CPU] = {}
        self._originals: list[tuple[dict, dict]] = []

    def add(self, owner: CPU, identity: str, function: Callable) -> str:
        """Register a host callback under its unique ID; return its name in the program."""
        name, number = identity, 1
        while name in self.functions:
            if self._owners[name] is not owner:
                raise error(
                    f"Two poptorch.CPU of this model have the ID {identity!r}. An ID must be "
                    "unique: give one of them another."
                )
            number += 1
            name = f"{identity} ({number})"
        self.functions[name], self._owners[name] = function, owner
        return name

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Collect the host callbacks of ``CPU`` objects called inside the block."""
        stores = [
            owner.__dict__[kind]
            for owner in self._module.modules()
            for kind in ("_parameters", "_buffers")
        ]
        self._originals = [(store, dict(store)) for store in stores]
        token = _calls.set(self)
        try:
            yield
        finally:
            _calls.reset(token)
            self._originals = []

    @contextlib.contextmanager
    def original_state(self) -> Iterator[None]:
        """Put the module's own tensors in place of traced tensors inside the block."""
        substituted = [dict(store) for store, _ in self._originals]
        for store, original in self._originals:
            store.update(original)
        try:
            yield
        finally:
            for (store, _), values in zip(self._originals, substituted, strict=True):
                store.update(values)


def _on_the_host(function: Callable[[], None]) -> None:
    """Run a function in a new thread, in which no capture is active."""
    raised: list[BaseException] = []

    def run() -> None:
        blocks.refuse_compiling_from_now_on()
        try:
            function()
        except BaseException as failure:  # noqa: BLE001 - raised again below
            raised.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
