"""The arguments of calls: compared with those of the first one, and taken to the device."""

from collections.abc import Sequence

import torch

from abele.step import batching
from abele.step.config import StepConfig
from abele.trace.module_state import ModuleState, tensor_ids
from poptorch._error import error
from poptorch._forward import structure
from poptorch._forward.arguments import Bound, Recorded
from poptorch._logging import logger

# Types that a device of this programming model does not have, and what stands in for them. A model
# whose own weights are of such a type computes in it all the same.
_DEMOTED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}


class Inputs:
    """Conversion of a call's arguments to the tensors that programs take.

    Args:
        bound: the arguments of the first call.
        module: the model.

    Attributes:
        recorded: the first call's arguments.
        device: where tensors are taken; the host until the device is known.
    """

    def __init__(self, bound: Bound, module: torch.nn.Module):
        weights = {value.dtype for value in ModuleState.of(module).params.values()}
        self.recorded = Recorded(bound, tensor_ids(module))
        self.device = torch.device("cpu")
        self._demoted = {kind: to for kind, to in _DEMOTED.items() if kind not in weights}
        self._plain = self._plain_leaves()
        self._warned: set[str] = set()
        if any(isinstance(value, dict) for value in (*bound.positional, *bound.keywords.values())):
            logger.warning("Dictionary inputs are only partially supported.")

    def _plain_leaves(self) -> tuple[tuple[torch.dtype, torch.Size], ...] | None:
        leaves = self.recorded.plain
        if leaves is None or any(leaf.dtype in self._demoted for leaf in leaves):
            return None
        return tuple((leaf.dtype, leaf.shape) for leaf in leaves)

    def matches(self, args: tuple) -> bool:
        """Return whether all tensors are contiguous host tensors like the first call's."""
        plain = self._plain
        if plain is None or len(args) != len(plain):
            return False
        # A loop, not all(...): this runs at every call, and a generator costs half a microsecond.
        for tensor, (dtype, shape) in zip(args, plain, strict=True):
            if not (
                type(tensor) is torch.Tensor
                and tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.is_cpu
                and not tensor.requires_grad
                and tensor.is_contiguous()
            ):
                return False
        return True

    def on_device(self, bound: Bound) -> list[torch.Tensor]:
        """Return the tensors of a call on the device, in dtypes that devices have.

        Raises:
            poptorch.Error: one is complex or not dense.
        """
        return [self._to_device(tensor) for tensor in self.recorded.tensors(bound)]

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype.is_complex:
            raise error(f"Complex inputs are not supported, found one of {tensor.dtype}.")
        structure.require_dense(tensor)
        if tensor.requires_grad:
            self._warn_once("An input tensor has requires_grad=True; it is detached.")
        if not tensor.is_contiguous():
            self._warn_once("A non-contiguous input tensor is made contiguous at every call.")
        dtype = self._demoted.get(tensor.dtype, tensor.dtype)
        if tensor.dtype is torch.bfloat16 and dtype is not tensor.dtype:
            self._warn_once(
                "A bfloat16 input becomes float32 at every call, as in PopTorch: no weight of the "
                "model is bfloat16. To compute in bfloat16, call model.bfloat16() before wrapping, "
                "or x.bfloat16() in forward."
            )
        return tensor.detach().to(device=self.device, dtype=dtype).contiguous()

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def micro_batch(rows: Sequence[torch.Tensor], config: StepConfig) -> list[torch.Tensor]:
    """Return the first micro-batch of the tensors of a call.

    Raises:
        BatchError: the rows do not divide into micro-batches.
        poptorch.Error: a tensor has no elements.
    """
    return [_first(tensor, config, index) for index, tensor in enumerate(rows)]


def _first(tensor: torch.Tensor, config: StepConfig, index: int) -> torch.Tensor:
    if tensor.numel() == 0:
        shape = list(tensor.shape)
        if shape[0] == 0:
            remedy = "Pass at least one row."
        else:
            remedy = (
                f"It has rows, but dimension {shape.index(0)} is 0. Leave it out of the call, and "
                "make it in forward where forward needs it: torch.zeros(...)."
            )
        raise error(
            f"Input tensor {index} has no elements (shape {shape}), which is not supported. "
            f"{remedy}"
        )
    rows = tensor.shape[0] if tensor.dim() else 1
    size = batching.micro_batch_size(rows, config, f"input {index}")
    return tensor.narrow(0, 0, size) if tensor.dim() else tensor


def refuse_shared(flat: Sequence[torch.Tensor], written: Sequence[int]) -> None:
    """Copy an input that is passed twice if the program writes to it.

    Raises:
        poptorch.Error: names the input.
    """
    storages = [tensor.untyped_storage().data_ptr() for tensor in flat]
    for index in written:
        if storages.count(storages[index]) > 1:
            raise error(
                f"Input tensor {index} is changed in forward and shares its memory with "
                "another input of the same call. Pass a clone of it."
            )
