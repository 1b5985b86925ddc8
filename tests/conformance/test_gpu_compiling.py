"""Kernels for GPUs are CUDA C++ that NVIDIA's compiler accepts; it needs no GPU.

What they compute is compared on the host (``test_gpu_kernels.py``) and on GPUs (``test_gpu.py``).
``ABELE_RANDOM_KERNELS=400`` tries that many random programs of each kind.
"""

import functools
import os
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from abele import passes
from abele.errors import CompilerError
from abele.program import Program
from abele.targets.cuda.emitted import lowering, nvrtc
from helpers.emitted_operators import program_of
from helpers.kernels_on_host import drawn
from helpers.models import MODELS
from helpers.runs import captured, rule_for

COUNT = int(os.environ.get("ABELE_RANDOM_KERNELS", "3"))
# The oldest that CUDA 13 compiles for, that of an H200, and a newer one.
OLDEST, H200, NEWER = (7, 5), (9, 0), (12, 0)

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable())),
]

THOROUGH = functools.partial(pytest.param, marks=pytest.mark.thorough)
OF_ONE = [
    *(F.relu, F.gelu, F.silu, F.mish, F.elu, F.celu, F.selu, F.leaky_relu, F.softplus, F.hardswish),
    *(F.hardsigmoid, F.hardtanh, F.logsigmoid, F.softsign, F.relu6),
    *(torch.sigmoid, torch.tanh, torch.erf, torch.erfc, torch.exp, torch.exp2, torch.expm1),
    *(torch.sin, torch.cos, torch.tan, torch.sinh, torch.cosh, torch.atan, torch.asinh, torch.log),
    *(torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.abs),
    *(torch.sign, torch.floor, torch.ceil, torch.trunc, torch.round, torch.isnan, torch.square),
    functools.partial(F.gelu, approximate="tanh"),
]
OF_TWO = [
    *(torch.maximum, torch.minimum, torch.atan2, torch.fmod, torch.remainder, torch.pow, torch.add),
    *(torch.xlogy, torch.copysign, torch.hypot, torch.div, torch.mul, torch.sub),
]


def code_of(program: Program, capability: tuple[int, int] = H200) -> list[bytes]:
    """What NVRTC makes of a program's kernels; none where torch computes all of it."""
    plan = lowering.planned(passes.run(program))
    return [nvrtc.compiled(text, capability) for text in plan.texts]


def all_operators(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [*(each(x) for each in OF_ONE), *(each(x, y) for each in OF_TWO)]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, THOROUGH(torch.float64), THOROUGH(torch.half)], ids=str
)
def test_operators_of_each_type_and_their_gradients(dtype):
    inputs = [torch.rand(5, 7, dtype=dtype) + 0.5 for _ in range(2)]
    codes = code_of(program_of(all_operators, inputs, gradients=True))
    assert codes
    assert all(code.startswith(b"\x7fELF") for code in codes)


@pytest.mark.parametrize(
    ("kind", "capability"),
    [("adam", OLDEST), ("lamb", H200), THOROUGH("adam", NEWER), THOROUGH("sgd", H200)],
)
def test_a_training_step(kind, capability):
    model = MODELS["batch norm and dropout"]
    module = model.fresh()
    (program,) = captured(module, model.batch(), rule=rule_for(module, kind)).programs
    assert code_of(program, capability)


@pytest.mark.parametrize("kind", ["networks", "operators"])
def test_random_programs(kind):
    compiled, refused = 0, list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operators that torch is about to remove
        for case, _ in drawn(kind, range(4000, 4000 + COUNT)):
            try:
                code_of(case.program)
            except CompilerError as error:
                refused.append(error.log)
            compiled += 1
    assert not refused
    assert compiled >= COUNT // 2


def test_what_it_refuses_is_quoted():
    with pytest.raises(CompilerError, match="NVRTC could not compile") as caught:
        nvrtc.compiled("this is not C++", H200)
    assert "program.cu(1): error" in caught.value.log
