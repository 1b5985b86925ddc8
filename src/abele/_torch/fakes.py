"""The fake-tensor mode of a capture, with fixed shapes, and functions that create fake tensors."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config as _config
import torch.nested._internal.nested_tensor as _nested
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import TorchDispatchMode


def static_fakes() -> FakeTensorMode:
    """Return the mode of a capture: tensors without data and with fixed shapes.

    Reading a value, or a shape that depends on a value, is an error. Torch's own cache of results
    is off: ``operator_cache`` has most of what it would find, and its keys took a fifth
    of a capture.
    """
    if "torch._dynamo" in sys.modules:
        mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
    else:
        mode = _made_by_hand()
    mode.cache_enabled = False
    return mode


def _made_by_hand() -> FakeTensorMode:
    """Return such a mode without its constructor.

    That one loads the front-end of torch's compiler for the defaults of two of its settings.
    """
    mode: Any = FakeTensorMode.__new__(FakeTensorMode)
    base: Any = TorchDispatchMode
    base.__init__(mode)
    nested: Any = _nested
    mode.__dict__ |= {
        "allow_fallback_kernels": True,
        "allow_meta": _config.fake_tensor_allow_meta,
        "allow_non_fake_inputs": True,
        "allow_scalar_outputs": False,
        "cache_crosscheck_enabled": False,
        "cache_enabled": True,
        "enter_stack": [],
        "fake_tensor_converter": FakeTensorConverter(copy_data=False, export=False),
        "in_kernel_invocation": False,
        "nt_tensor_id_counter": nested._tensor_id_counter,
        "nt_tensor_id_initial_count": nested._tensor_id_counter,
        "propagate_real_tensors": False,
        "shape_env": None,
        "static_shapes": True,
        "_allow_unsafe_data_ptr_access": _config.fake_tensor_allow_unsafe_data_ptr_access,
        "_mode_key": torch._C._TorchDispatchModeKey.FAKE,
        "_stack": None,
        "_stack_trace": traceback.StackSummary(),
    }
    return mode


def prepare_control_flow() -> None:
    """Let torch's loops and branches be traced with the mode that is open, if any is.

    They need a ``ShapeEnv``, which loads torch's compiler; other operators do not.
    """
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode: FakeTensorMode | None = detect_fake_mode()
    if mode is not None and mode.shape_env is None:
        mode.shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


def laid_out_like(
    like: torch.Tensor, mode: FakeTensorMode, shared: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a tensor without data, laid out like another one, in memory of its own or shared."""
    shape, stride = like.shape, like.stride()
    if shared is not None:
        return view_of(shared, mode, shape, stride, like.storage_offset(), like)
    device = like.fake_device if isinstance(like, FakeTensor) else like.device
    return laid_out(shape, stride, like.dtype, device, mode)


def laid_out(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    mode: FakeTensorMode,
) -> torch.Tensor:
    """Return a fake tensor with these strides in memory of its own."""
    with in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, meta, device)


def view_of(
    tensor: torch.Tensor,
    mode: FakeTensorMode,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int | torch.SymInt,
    like: torch.Tensor,
) -> torch.Tensor:
    """Return a tensor without data in the memory of another one, of the type of ``like``."""
    device = like.fake_device if isinstance(like, FakeTensor) else like.device
    with in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(shape, stride, dtype=like.dtype, device="meta")
        meta.set_(tensor.untyped_storage(), offset, shape, stride)
    return FakeTensor(mode, meta, device)


def viewed(tensor: FakeTensor, view: Callable[..., torch.Tensor], *settings: Any) -> torch.Tensor:
    """Return a view of a tensor without data, as the kernel lays it out.

    Torch asks a function in Python for most of them, which takes up to a millisecond.

    Args:
        tensor: is viewed.
        view: the operator; a kernel decides without looking at values.
        settings: its other arguments.

    Raises:
        IndexError, RuntimeError: there is no such view.
    """
    with in_kernel_invocation_manager(tensor.fake_mode):
        meta = view(tensor, *settings)
    return FakeTensor(tensor.fake_mode, meta, tensor.fake_device)
