"""``out=`` in forward: of the caller, inside torch's own functions, and what is refused."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.errors import CaptureError
from helpers.runs import assert_same_bits, captured, rule_for, run, run_eagerly, started

X = torch.tensor([[3.0, -2.0, 5.0], [1.0, 0.5, -1.0], [2.0, 2.0, 0.0]])
V = torch.tensor([1.0, -1.0, 2.0])


class Calls(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self._forward = forward

    def forward(self, x):
        return self._forward(x)


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype)


def into_a_view(x):
    out = torch.zeros(2, 3, 3)
    torch.mul(x, 2, out=out[1])
    return out


FORWARDS = {
    "matmul": lambda x: torch.matmul(x, x, out=empty(3, 3)),
    "matmul with a vector": lambda x: torch.matmul(x, V, out=empty(3)),
    "matmul of batches": lambda x: torch.matmul(x.expand(2, 3, 3), x, out=empty(2, 3, 3)),
    "bmm": lambda x: torch.bmm(x[None], x[None], out=empty(1, 3, 3)),
    "addmv": lambda x: torch.addmv(V, x, V, out=empty(3)),
    "cumsum": lambda x: torch.cumsum(x, 0, out=empty(3, 3)),
    "bucketize": lambda x: torch.bucketize(x, V.sort().values, out=empty(3, 3, dtype=torch.int64)),
    "normalize": lambda x: F.normalize(x, out=empty(3, 3)),
    "two results": lambda x: torch.sort(x, out=(empty(3, 3), empty(3, 3, dtype=torch.int64)))[0],
    "its own argument": lambda x: (lambda y: torch.exp(y, out=y))(x * 2),
    "random": lambda x: x + torch.randn(3, out=empty(3)),
    "a view": into_a_view,
    "of torch itself": lambda x: torch.linalg.multi_dot([x, x, x], out=empty(3, 3)),
}


@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_the_result_is_written_where_it_should_be(forward):
    session, _ = started(Calls(forward), (X,))
    torch.manual_seed(0)
    expected = forward(X.clone())
    torch.manual_seed(0)
    (output,) = session.step([X.clone()])
    assert output.dtype == expected.dtype
    assert torch.equal(output, expected)


def test_spectral_norm_trains():
    def model():
        torch.manual_seed(0)
        return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))

    class Scored(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            return F.mse_loss(self.inner(x), x)

    module, plain = Scored(), Scored()
    batches = [(X,), (X / 2,), (X,)]
    expected = run_eagerly(plain, torch.optim.SGD(plain.parameters(), lr=0.05), batches)
    session, _ = started(module, batches[0], rule_for(module, momentum=0.0))
    assert_same_bits(run(session, batches), expected)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (
            lambda x: torch.add(x, 1, out=empty(2)),
            r"shape \[3, 3\] and \S+ and was given a tensor of shape \[2\] .*, at .*add",
        ),
        (
            lambda x: torch.cummax(x, 0, out=(empty(3, 3), empty(3, 3))),
            "and torch.int64 .* and torch.float32",
        ),
        (lambda x: torch.arange(3, out=empty(3)), "torch.arange with out= is not supported"),
        (lambda x: torch.unbind_copy(x, out=[empty(3)] * 3), "unbind_copy with out= is not"),
    ],
    ids=["shape", "dtype", "factory", "list"],
)
def test_what_does_not_fit_is_refused_by_line(forward, words):
    with pytest.raises(CaptureError, match=words):
        captured(Calls(forward), (X,))
