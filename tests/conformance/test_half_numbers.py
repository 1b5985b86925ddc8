"""Conversions between 16 bits and float32 in kernels and loops are torch's, bit for bit."""

from __future__ import annotations

import ctypes
import platform
import subprocess

import pytest
import torch

from abele.kernels import sources
from helpers.kernel_library import COMPILER, NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

TEXT = """
#include "half.h"
using namespace abele;
template <class T> void round_each(const float* from, long n, float* to) {
  for (long i = 0; i < n; ++i) to[i] = T::rounded(from[i]);
}
#define OF(name, T) \\
  extern "C" auto* const widen_##name = &widen<T>; \\
  extern "C" auto* const narrow_##name = &narrow<T>; \\
  extern "C" auto* const round_##name = &round_all<T>; \\
  extern "C" auto* const round_each_##name = &round_each<T>;
OF(float16, Half)
OF(bfloat16, Bfloat)
"""
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# Without instructions for halves, loops convert them.
LOOPS = ("-mno-f16c", "-mno-avx512f") if platform.machine() == "x86_64" else ("-O1",)


@pytest.fixture(scope="module", params=[(), LOOPS], ids=["instructions", "loops"])
def library(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    (folder / "half.cpp").write_text(TEXT)
    assert COMPILER is not None
    command = [COMPILER, *sources.FLAGS, *request.param, "-fvisibility=default", "-shared"]
    result = folder / "half.so"
    files = ["-I", str(sources.FOLDER), str(folder / "half.cpp"), "-o", str(result)]
    subprocess.run([*command, *files], check=True)
    return ctypes.CDLL(str(result))


def converted(library, function, values, dtype):
    result = torch.empty(values.numel(), dtype=dtype)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p)
    kind.in_dll(library, function)(values.data_ptr(), values.numel(), result.data_ptr())
    return result


def floats():
    """Floats of every exponent, half of them near where 16 bits round up, and special ones."""
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2**20,), generator=g).to(torch.int32)
    for size in (12, 13, 15, 16):
        bits = torch.cat([bits, bits[: 2**18] >> size << size, (bits[: 2**18] >> size << size) + 1])
    special = [0.0, -0.0, 65504.0, 65519.996, 65520.0, -65536.0, 2.0**-24, 2.0**-25, 3 * 2.0**-26]
    special += [float("inf"), float("-inf"), float("nan"), 6.1e-5, 3.4e38, -3.3961775e38]
    return torch.cat([bits.view(torch.float32), torch.tensor(special)])


def same(ours, theirs):
    """Bits are the same, but for those of NaN."""
    integer = {2: torch.int16, 4: torch.int32}[ours.element_size()]
    alike = (ours.view(integer) == theirs.view(integer)) | (ours.isnan() & theirs.isnan())
    return bool(alike.all())


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("flushed", [False, True])
def test_every_number_of_16_bits_is_the_same_float(library, name, flushed):
    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(TYPES[name])
    expected = values.float()
    torch.set_flush_denormal(flushed)
    try:
        result = converted(library, f"widen_{name}", values, torch.float32)
    finally:
        torch.set_flush_denormal(False)
    assert same(result, expected)


@pytest.mark.parametrize("name", TYPES)
def test_floats_are_rounded_as_torch_rounds(library, name):
    values = floats()
    expected = values.to(TYPES[name])
    assert same(converted(library, f"narrow_{name}", values, TYPES[name]), expected)
    for function in (f"round_{name}", f"round_each_{name}"):
        assert same(converted(library, function, values, torch.float32), expected.float())
