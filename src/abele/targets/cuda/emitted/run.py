"""Execution of a program's launches and ATen calls on a GPU.

This runs twice for each set of state: to let libraries choose their kernels, and for capture.
After that its speed does not matter.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from abele.targets.cuda.emitted import gemms, nvrtc
from abele.targets.cuda.emitted.choices import Choices, Step, products_of
from abele.targets.cuda.emitted.gemms import ConcurrentGemms
from abele.targets.cuda.emitted.source import THREADS, Launch, Pointer
from abele.targets.streams import on_capture_stream
from abele.targets.translation.operations import Foreign, places_changed
from abele.targets.translation.places import Buffer, Kind, Place, laid_out
from abele.targets.translation.translate import Translator


class Runner:
    """A callable that runs the kernel launches and ATen calls of a program in order.

    Args:
        translation: with the views of inputs and results.
        steps: in execution order.
        freed: buffers to free after each step.
        written: for each input, whether the program writes it.
        constants: of the program's graph, by buffer index.
        kernels: the loaded CUDA kernels.
        device: the GPU.
        choices: GEMM autotuning choices; None for torch's defaults without parallel GEMMs.
    """

    def __init__(
        self,
        translation: Translator,
        steps: Sequence[Step],
        freed: Sequence[Sequence[Buffer]],
        written: Sequence[bool],
        constants: Sequence[torch.Tensor],
        kernels: nvrtc.Kernels,
        device: torch.device,
        choices: Choices | None = None,
    ):
        self._libraries: dict[Foreign, str] = {}
        self._together: set[ConcurrentGemms] = set()
        if choices is not None:
            self._libraries = dict(zip(products_of(steps), choices.libraries, strict=True))
            groups = (step for step in steps if isinstance(step, ConcurrentGemms))
            self._together = set(itertools.compress(groups, choices.together))
        self._translation, self._steps, self._freed = translation, steps, freed
        self._written, self._constants = written, constants
        self._kernels, self._device = kernels, device

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program: update state in place and return the results.

        Args:
            inputs: one tensor on the device for each slot; the list is emptied.
        """
        with torch.no_grad():
            if self._device.type == "cpu" or torch.cuda.is_current_stream_capturing():
                return self._run(inputs, _Memory(self._constants, self._device))
            memory = _Memory(self._constants, self._device)
            return on_capture_stream(lambda: self._run(inputs, memory))

    def _run(self, inputs: list[torch.Tensor], memory: _Memory) -> list[torch.Tensor]:
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tensor, place, written in zip(
            inputs, self._translation.inputs, self._written, strict=True
        ):
            taken = memory.take(place, tensor)
            if written and taken is not tensor:
                copies.append((tensor, taken))
        inputs.clear()
        self._kernels.use()
        for step, unused in zip(self._steps, self._freed, strict=True):
            if isinstance(step, Launch):
                addresses = [memory.address(each) for each in step.pointers]
                self._kernels.launch(step.name, step.blocks, THREADS, addresses)
            elif isinstance(step, ConcurrentGemms):
                self._products(step, memory)
            else:
                self._call(step, memory)
            memory.free(unused)
        outputs = [memory.tensor(place).to(place.dtype) for place in self._translation.outputs]
        for tensor, ordered in copies:
            tensor.copy_(ordered)
        return outputs

    def _products(self, step: ConcurrentGemms, memory: _Memory) -> None:
        """Run independent GEMMs, in parallel if that was measured faster."""
        works = [functools.partial(self._call, each, memory) for each in step.operations]
        if step in self._together:
            gemms.together(works)
        else:
            for work in works:
                work()

    def _call(self, step: Foreign, memory: _Memory) -> None:
        with gemms.using(self._libraries.get(step)):
            _call(step, memory)


def _call(step: Foreign, memory: _Memory) -> None:
    """Run the ATen fallback of an operator."""
    target: Any = step.target
    arguments, options = places_changed((step.arguments, step.options), memory.tensor)
    value = target(*arguments, **options)
    values = value if step.several else [value]
    for place, result in zip(step.results, values, strict=False):
        # Torch makes no gradient that nobody wants, whatever it says of its type.
        if place is not None and result is not None:
            memory.take(place, result)


class _Memory:
    """The tensors behind the buffers of one run.

    Args:
        constants: of the program's graph, by buffer index.
        device: where to allocate buffers.
    """

    def __init__(self, constants: Sequence[torch.Tensor], device: torch.device):
        self._constants, self._device = constants, device
        self._of: dict[Buffer, torch.Tensor] = {}
        self._cast: dict[Buffer, torch.Tensor] = {}  # what torch made in another type

    def take(self, place: Place, tensor: torch.Tensor) -> torch.Tensor:
        """Bind a tensor to a buffer, copied if its strides differ from the plan."""
        lazy = tensor.is_conj() or tensor.is_neg()  # its memory holds other numbers
        if not _is_other(tensor, place) and (lazy or not place.stride_is(tensor.stride())):
            tensor = laid_out(tensor, place)
        self._of[place.buffer] = tensor
        return tensor

    def free(self, buffers: Sequence[Buffer]) -> None:
        """Free the device memory of buffers."""
        for buffer in buffers:
            self._of.pop(buffer, None)
            self._cast.pop(buffer, None)

    def address(self, pointer: Pointer) -> int:
        """Return the device address of a buffer element; plain numbers are returned as is."""
        if isinstance(pointer, int):
            return pointer
        buffer, offset = pointer
        base = self._cast.get(buffer, self._base(buffer))
        if base.dtype != buffer.dtype:
            # Operators do not always make what they say: of a half batch norm running statistics
            # are float32 in a captured program and half when torch computes them.
            base = self._cast[buffer] = base.to(buffer.dtype)
        if base.numel() < buffer.size and buffer.kind is Kind.FOREIGN:
            raise RuntimeError("an operator of torch has made less than its gradient reads")
        return base.data_ptr() + offset * buffer.dtype.itemsize

    def tensor(self, place: Place) -> torch.Tensor:
        """Return the tensor for a view of a buffer."""
        base = self._base(place.buffer)
        if _is_other(base, place):
            return base
        if base.shape == place.shape and place.stride_is(base.stride()) and not place.offset:
            return base
        return base.as_strided(place.shape, place.stride, base.storage_offset() + place.offset)

    def _base(self, buffer: Buffer) -> torch.Tensor:
        """Return the tensor that backs a buffer, allocated at its first use."""
        if buffer.kind is Kind.CONSTANT:
            return self._constants[buffer.index]
        if buffer not in self._of:
            self._of[buffer] = torch.empty(buffer.size, dtype=buffer.dtype, device=self._device)
        return self._of[buffer]


def _is_other(tensor: torch.Tensor, place: Place) -> bool:
    """Return whether torch returned a tensor of another size than it does on the host.

    This happens for results that only an operator's own gradient reads, such as those of an LSTM.
    """
    return place.buffer.kind is Kind.FOREIGN and tensor.numel() != place.size == place.buffer.size
