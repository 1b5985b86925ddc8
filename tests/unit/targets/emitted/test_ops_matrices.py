"""Products of matrices in emitted code are those of the interpreter."""

import math

import pytest
import torch

from abele.targets.cpu.emitted import build
from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(6)
A = torch.randn(7, 33, 17, generator=G)
B = torch.randn(7, 17, 29, generator=G)
C = torch.randn(33, 29, generator=G)
HIDDEN = torch.full((33, 33), -math.inf).triu(1)
LARGE = torch.randn(6, 64, 64, generator=G)

CASES = {
    "matrices": Case(
        lambda a, b, c: (
            a[0] @ b[0],
            b[1].t() @ a[1].t(),
            torch.addmm(c, a[0], b[0], beta=0.5, alpha=2),
        ),
        (A, B, C),
        gradients=True,
    ),
    "products without a sum": Case(
        lambda a, b, c: (
            a[0][:, :1] @ b[0][:1],
            c + a[0][:, :1] @ b[0][:1],
            a[0][:, 1:2] @ b[0][:1, :1],
        ),
        (A, B, C),
        gradients=True,
    ),
    "nothing added": Case(
        lambda a, b, c: torch.addmm(c * math.nan, a[0], b[0], beta=0), (A, B, C), atol=1e-4
    ),
    "batches": Case(
        lambda a, b, c: (
            a @ b,
            torch.baddbmm(c, a, b),
            torch.baddbmm(c, a, b, beta=0.5, alpha=-1),
            b.mT @ a.mT,
        ),
        (A, B, C),
        gradients=True,
        rtol=1e-4,
        atol=1e-3,
    ),
    "batches that share": Case(
        lambda a, b, c: (
            torch.bmm(a, b[:1].expand(7, -1, -1)),
            torch.bmm(a[::2, :, ::3], b[::2, ::3]),
        ),
        (A, B, C),
    ),
    "large batches": Case(lambda x: x @ x.mT, (LARGE,), gradients=True, rtol=1e-4, atol=1e-2),
    "doubles": Case(
        lambda a, b: (
            a[0].double() @ b[0].double(),
            a.double() @ b.double(),
            a.double().mT @ a.double(),
        ),
        (A, B),
        same_for_threads=False,
    ),
    "large doubles, of halves too": Case(
        lambda x: (
            x[0].double() @ x[1].double(),
            x.double() @ x.double().mT,
            x[0].half().double() @ x[1].bfloat16().double(),
            x.bfloat16().double() @ x.half().double(),
        ),
        (LARGE,),
        same_for_threads=False,
    ),
    "vectors": Case(
        lambda a, b: (
            a[0] @ b[0, :, 1],
            torch.dot(a[0, 0], b[0, :, 0]),
            a[0].t() @ a[1][:, 3],
            a[1, :1] @ a[2, 0],
        ),
        (A, B),
        gradients=True,
        calls={"mv.default": 6, "dot.default": 1},
        rtol=1e-4,
        atol=1e-4,
    ),
    "attention": Case(lambda a: ((a @ a.mT) / 4 + HIDDEN).softmax(-1) @ a, (A,), True, atol=1e-4),
    "of our kernel": Case(
        lambda a, b, x: (
            a.repeat(1, 1, 3)[0] @ b.repeat(1, 3, 2)[0],
            a.repeat(1, 1, 3) @ b.repeat(1, 3, 2),
            x[0] @ x[1, :, :37] @ x[2, :, :37].t()[:, ::3],
        ),
        (A, B, LARGE),
        gradients=True,
        rtol=1e-4,
        atol=1e-2,
    ),
    "a factor that many read": Case(
        lambda x: ((((x[0] @ x[5]).tanh() @ x[5]).tanh() @ x[5]).tanh() @ x[5].t()).tanh(),
        (LARGE / 8,),
        gradients=True,
    ),
    "a factor that many batches of one read": Case(
        lambda x: sum(
            torch.bmm(f(x[:1, :32]), b).tanh()
            for b in (x[5:], x[5:].mT, x[5].expand(1, 64, 64), x[4:5, :, ::2])
            for f in (torch.exp, torch.tanh, torch.sin)
            for b in (b[..., :32],)
        ),
        (LARGE / 8,),
        gradients=True,
    ),
    "a factor that many batches read": Case(
        lambda x: (x[:2] @ x[2:4]).tanh() + x[:2].exp() @ x[2:4] + x[:2].sin() @ x[2:4],
        (LARGE / 8,),
        gradients=True,
    ),
    "nothing to sum": Case(lambda a, b: (a[0][:, :0] @ b[0][:0], a[:, :, :0] @ b[:, :0]), (A, B)),
}


THREADS_OF_LIBRARY = """
#include "matrix.h"
using namespace abele;
extern "C" __attribute__((weak)) int MKL_Get_Max_Threads();
extern "C" __attribute__((visibility("default"))) int threads(int rows) {
  float one = 1;  // a call, so that the library is linked
  product(1, 1, 1, &one, 1, 1, &one, 1, 1, &one);
  if (MKL_Get_Max_Threads == nullptr) return 0;
  const LibraryThreads few(Index(rows) * 100 * 972);
  return MKL_Get_Max_Threads();
}
"""


def test_small_products_of_the_library_leave_other_threads_alone():
    library = build.loaded(build.compiled("threads", THREADS_OF_LIBRARY))
    if not library.threads(1):
        pytest.skip("torch's products are not MKL's here")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert [library.threads(rows) for rows in (1, 4, 5, 1, 5)] == [1, 1, 2, 1, 2]
    finally:
        torch.set_num_threads(before)
