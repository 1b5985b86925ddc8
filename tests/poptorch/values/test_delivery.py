"""Results in the containers of forward: the quick ways give what the walk gives."""

import collections

import pytest
import torch

import poptorch
from poptorch._forward import structure
from poptorch._forward.structure import delivery, to_host

Pair = collections.namedtuple("Pair", "first second")


def leaf():
    return torch.ones(2)


@pytest.mark.parametrize(
    "result",
    [
        leaf(),
        (leaf(), leaf()),
        (leaf(),),
        [leaf(), leaf()],
        Pair(leaf(), leaf()),
        {"a": leaf(), "b": (leaf(), 3)},
        (leaf(), "a constant"),
        ([leaf()], (leaf(), leaf())),
    ],
    ids=lambda result: type(result).__name__,
)
def test_results_come_back_as_forward_returned_them(result):
    like, tensors = structure.taken_apart(result)
    values = [torch.full((2,), float(index)) for index in range(len(tensors))]
    expected = structure.rebuild(like, map(to_host, (v.clone() for v in values)))
    delivered = delivery(like)(values)
    assert type(delivered) is type(expected)
    assert repr(delivered) == repr(expected)


@pytest.mark.parametrize("result", [leaf(), (leaf(),), [leaf()]], ids=["one", "tuple", "list"])
def test_results_refuse_backward(result):
    like, tensors = structure.taken_apart(result)
    delivered = delivery(like)(tensors)
    first = delivered if isinstance(delivered, torch.Tensor) else delivered[0]
    with pytest.raises(poptorch.Error, match="Results carry no gradient history"):
        first.backward()


@pytest.mark.parametrize("result", [leaf().long(), (leaf().double(),)], ids=["int64", "float64"])
def test_results_have_the_types_of_devices(result):
    like, tensors = structure.taken_apart(result)
    delivered = delivery(like)(tensors)
    first = delivered if isinstance(delivered, torch.Tensor) else delivered[0]
    assert first.dtype in (torch.int32, torch.float32)
