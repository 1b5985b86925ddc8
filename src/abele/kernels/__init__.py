"""C++ kernels for the operators in ``abele/ops``, in one library that ``abi.h`` declares.

``build.py`` compiles it. There are three callers: code that Inductor generates goes through
``shims.cpp``, whose functions this module declares; Python goes through ``binding.py``; C and C++
include ``abi.h``. ``on_tensors.py`` has convolutions and pools as functions of tensors.
"""

from __future__ import annotations

import torch

from abele._torch import OpOverload
from abele.ops import few_channel_conv, max_pool
from abele.program import Program

#: Importing these modules registers the operators.
OPERATORS = (few_channel_conv, max_pool)

# Declarations of the functions in shims.cpp, by the operator that generated code replaces by them.
_TENSOR, _INTS = "AtenTensorHandle {}", "const int64_t* {0}, int64_t {0}_length"
_SHIMS = {
    "few_channel_conv": (
        *(_TENSOR.format(name) for name in ("x", "weight", "*bias")),
        *(_INTS.format(name) for name in ("stride", "padding")),
        _TENSOR.format("*result"),
    ),
    "few_channel_conv_backward": (
        *(_TENSOR.format(name) for name in ("grad", "x", "weight")),
        *(_INTS.format(name) for name in ("stride", "padding")),
        "const int32_t* output_mask, int64_t output_mask_length",
        *(_TENSOR.format(name) for name in ("*grad_x", "*grad_weight", "*grad_bias")),
    ),
    "max_pool": tuple(_TENSOR.format(name) for name in ("x", "*values", "*indices")),
}


def shims() -> dict[OpOverload, str]:
    """Return the C function behind each operator, as a declaration."""
    return {
        _operator(name): f"AOTITorchError aoti_torch_cpu_{name}({', '.join(arguments)})"
        for name, arguments in _SHIMS.items()
    }


def used_by(program: Program) -> bool:
    """Return whether ``program`` calls any of the operators."""
    operators = {_operator(name) for name in _SHIMS}
    return any(node.target in operators for node in program.graph.graph.nodes)


def _operator(name: str) -> OpOverload:
    return getattr(torch.ops.abele, name).default
