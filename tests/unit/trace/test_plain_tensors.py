"""Tensors that are neither state nor input: written, viewed, read, returned, and left behind."""

import contextlib

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.errors import CaptureError, DataDependentError
from abele.trace.decompositions import constant_value
from helpers.runs import captured, rule_for, run, run_eagerly, started

X = torch.tensor([3.0, -2.0, 5.0])
LEFT: dict[str, torch.Tensor] = {}
CHANGES = "forward changes a tensor in place that is neither a parameter nor a buffer"


class Holding(nn.Module):
    """Plain tensors, two of them in the same memory, and a forward that a test wants."""

    def __init__(self, forward):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.count, self.table = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
        self.whole = torch.arange(6.0)
        self.low, self.high = self.whole[:3], self.whole[2:5]
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def stepped(forward, *, warned=False):
    """The module, and what two calls of its program return."""
    module = Holding(forward)
    with pytest.warns(UserWarning, match=CHANGES) if warned else contextlib.nullcontext():
        session, _ = started(module, (X,))
    return module, [session.step([X.clone()])[0] for _ in range(2)]


def values_in(forward):
    """What is known in forward of the tensors that it yields."""
    results = []

    def collecting(module, x):
        for each in forward(module, x):
            value = constant_value(each)
            results.append(None if value is None else value.tolist())
        return x

    with pytest.warns(UserWarning, match=CHANGES):
        captured(Holding(lambda m, x: collecting(m, x) + m.count.fill_(0)), (X,))
    return results


# -- values that are known -----------------------------------------------------------------


def through_index(c):
    c[0] = 2


WRITERS = {
    "index": through_index,
    "view": lambda c: c.view(3)[:1].fill_(2),
    "reshape": lambda c: c.reshape(3, 1)[0].add_(2),
    "detach": lambda c: c.detach()[0].add_(2),
    "data": lambda c: c.data[:1].add_(2),
    "unbind": lambda c: c.unbind()[0].fill_(2),
    "chunk": lambda c: c.chunk(3)[0].copy_(torch.tensor([2.0])),
    "out": lambda c: torch.add(torch.ones(1), 1, out=c[:1]),
    "another write": lambda c: c[:1].view(-1).copy_(torch.zeros(1).add_(2)),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_values_written_through_views_are_known(write):
    def forward(m, x):
        made = torch.zeros(3)
        before = made.sum()
        write(made)
        return x + 1 if made.sum() > before and made.tolist() == [2, 0, 0] else x - 1

    _, results = stepped(forward)
    assert all(torch.equal(result, X + 1) for result in results)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_values_written_from_an_input_are_refused_through_every_view(write):
    def forward(m, x):
        made = torch.zeros(3) * 1
        view = made[1:]
        write(made)
        view[0] = x[0]
        return x * float(made[0])

    with pytest.raises(DataDependentError, match=r"reads the value .*float\(made\[0\]\)"):
        captured(Holding(forward), (X,))


def test_what_was_computed_before_a_write_is_known_after_it():
    def forward(m, x):
        made = torch.ones(3)
        total = made.sum()
        made[0] = x[0]
        return total, made, m.table, m.count

    assert values_in(forward) == [3.0, None, [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]


def test_operators_of_values_compute_with_constants():
    def forward(m, x):
        rows = (torch.tensor([1, 0, 1])).nonzero().flatten()
        same = torch.equal(m.table, m.table.clone())
        return x[rows] if same and m.table.numpy()[1] == 2 else x[:1]

    _, results = stepped(forward)
    assert results[0].tolist() == [3.0, 5.0]


# -- writes into plain tensors -------------------------------------------------------------


def test_a_copy_of_a_plain_tensor_may_be_written_from_an_input():
    def forward(m, x):
        mask = m.table.clone()
        mask[0] = x[0]
        return mask.masked_fill_(m.table > 2.5, 0)

    module, results = stepped(forward)
    assert [result.tolist() for result in results] == [[3, 2, 0]] * 2
    assert module.table.tolist() == [1, 2, 3]


def test_each_call_starts_from_the_constant_and_the_module_has_what_the_trace_left():
    def forward(m, x):
        m.count += 1
        return x + m.count

    module, results = stepped(forward, warned=True)
    assert all(torch.equal(result, X + 1) for result in results)
    assert type(module.count) is torch.Tensor
    assert module.count.tolist() == [1, 1, 1]


def test_what_depends_on_an_input_is_computed_in_each_call_and_not_left_behind():
    def forward(m, x):
        m.count.add_(x)
        return m.count

    module, results = stepped(forward, warned=True)
    assert all(torch.equal(result, X) for result in results)
    assert module.count.tolist() == [0, 0, 0]


def test_a_changed_plain_tensor_that_is_returned_is_a_constant():
    def forward(m, x):
        m.count.add_(2)
        return x, m.count

    with pytest.warns(UserWarning, match=CHANGES):
        made = captured(Holding(forward), (X,))
    assert {i: value.tolist() for i, value in made.constants.items()} == {1: [2, 2, 2]}


def test_writes_that_another_plain_tensor_in_the_same_memory_sees_are_refused():
    def forward(m, x):
        m.low.add_(x)
        return torch.cat([m.whole, m.low])

    message = r"another one in the same memory, at .*py:\d+.*register_buffer"
    with pytest.raises(CaptureError, match=message), pytest.warns(UserWarning, match=CHANGES):
        captured(Holding(forward), (X,))


STRIDED = {
    "by position": lambda m, x: x + m.whole.as_strided((3,), (2,)),
    "by name": lambda m, x: x + m.whole.as_strided(size=(3,), stride=(0,), storage_offset=1),
    "of bits": lambda m, x: x + m.whole.view(torch.int32).as_strided((3,), (2,)),
    "of a permuted one": lambda m, x: x + m.whole.view(2, 3).t().as_strided((3,), (1,), 3),
}


@pytest.mark.parametrize("forward", STRIDED.values(), ids=STRIDED)
def test_as_strided_sees_all_memory_of_a_plain_tensor(forward):
    module, results = stepped(forward)
    for result in results:
        assert torch.equal(result, forward(module, X))


def test_memory_beyond_a_tensor_of_the_trace_is_refused_by_line():
    for forward in (
        lambda m, x: x + m.low.view(torch.int32).as_strided((3,), (2,)),
        lambda m, x: x.as_strided((4,), (1,)),
        lambda m, x: x + m.high.as_strided((3,), (1,)),
        lambda m, x: (x + m.weight).as_strided((2,), (1,), 2),
    ):
        with pytest.raises(CaptureError, match=r"elements of memory by as_strided at .*test_plain"):
            captured(Holding(forward), (X,))


def test_training_leaves_plain_tensors_without_history():
    def forward(m, x):
        m.count.copy_(m.weight * x)
        m.whole[0] = 7
        return F.mse_loss(m.count.tanh() * m.whole[0], x)

    module, plain = Holding(forward), Holding(forward)
    with pytest.warns(UserWarning, match=CHANGES):
        session, _ = started(module, (X,), rule_for(module, momentum=0.0))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    expected = run_eagerly(plain, optimizer, [(X,)])
    assert torch.equal(run(session, [(X,)]).params["weight"], expected.params["weight"])
    assert module.count.grad_fn is None
    assert not module.count.requires_grad
    assert module.whole.tolist() == [7, 1, 2, 3, 4, 5]


def test_memory_that_is_read_without_an_operator_is_that_of_the_trace():
    def forward(m, x):
        m.count.add_(x)
        return x + m.count.tolist()[0]

    with (
        pytest.raises(DataDependentError, match=r"reads the value .*m\.count\.tolist\(\)"),
        pytest.warns(UserWarning, match=CHANGES),
    ):
        captured(Holding(forward), (X,))


def test_new_shapes_of_given_tensors_are_refused():
    forwards = {"squeeze": lambda m, x: m.table.squeeze_(), "t": lambda m, x: x.t_()}
    for name, forward in forwards.items():
        with pytest.raises(CaptureError, match=rf"shape .* given, with {name}_ at .*, {name}\."):
            captured(Holding(lambda m, x, f=forward: f(m, x) * 1), (X,))


# -- elements that share their memory ------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda made: made.unfold(0, 2, 1).add_(1),
        lambda made: made[:1].expand(3, -1).add_(1),
        lambda made: made[:1].expand(3, -1).relu_(),
        lambda made: made[:1].expand(3, -1).fill_(2),
        lambda made: made[:1].expand(3, -1).copy_(torch.ones(3, 1)),
        lambda made: made[:1].expand(3, -1).masked_fill_(torch.eye(3)[:, :1] > 0, 2),
        lambda made: made[:1].expand(3, -1).tril_(),
    ],
    ids=["unfold", "expand", "relu", "fill", "copy", "masked_fill", "tril"],
)
def test_writes_into_overlapping_elements_are_refused_by_line(write):
    def forward(m, x):
        made = x * 2
        write(made)
        return made

    with pytest.raises(CaptureError, match=r"elements that share their memory, at .*\.py:\d+"):
        captured(Holding(forward), (X,))


def test_operators_that_write_into_lists_of_tensors_are_computed():
    def forward(m, x):
        made = [x * 2, x * 3]
        torch._foreach_mul_(made, 2.0)
        return made[0] + made[1]

    session, _ = started(Holding(forward), (X,))
    assert torch.equal(session.step([X])[0], X * 10)


# -- what an earlier capture left ----------------------------------------------------------


def test_a_tensor_that_a_capture_left_in_a_global_is_refused_by_line():
    def forward(m, x):
        if "table" not in LEFT:
            LEFT["table"] = torch.ones(3) * 2
        return x + LEFT["table"]

    try:
        captured(Holding(forward), (X,))
        with pytest.raises(CaptureError, match=r"earlier capture left .*\.py:\d+\..* in __init__"):
            captured(Holding(forward), (X,))
    finally:
        LEFT.clear()


# -- state by another way ------------------------------------------------------------------


class Listed(Holding):
    def __init__(self, forward):
        super().__init__(forward)
        self.held, self.later = {"all": [self.weight]}, self.weight.detach()[1:]


def test_a_parameter_in_a_list_is_the_parameter():
    def forward(m, x):
        (weight,) = m.held["all"]
        return F.mse_loss(x * m.weight, torch.stack([x, x, x])[0]) + torch.stack([weight]).sum()

    module, plain = Listed(forward), Listed(forward)
    expected = run_eagerly(plain, torch.optim.SGD(plain.parameters(), lr=0.05), [(X,)] * 3)
    losses = Listed(lambda m, x: F.l1_loss(forward(m, x), torch.tensor(-1e9), reduction="sum"))
    session, _ = started(losses, (X,), rule_for(module, momentum=0.0))
    output = run(session, [(X,)] * 3)
    assert torch.equal(output.params["weight"], expected.params["weight"])


def test_a_parameter_in_a_list_that_is_returned_is_current():
    session, _ = started(Listed(lambda m, x: (x, m.held["all"][0])), (X,))
    session.params["weight"].zero_()
    assert session.step([X])[1].tolist() == [0, 0, 0]


def test_memory_of_a_parameter_under_another_name_is_refused():
    with pytest.raises(CaptureError, match=r"memory of weight through another tensor, at .*later"):
        captured(Listed(lambda m, x: x + m.later.sum()), (X,))


def array_is_written(self, x):
    constant = torch.zeros(3)
    constant.numpy()[0] = 4.0
    return x * self.weight + constant


def test_a_write_into_the_array_of_a_constant_is_refused():
    with pytest.raises(ValueError, match="read-only"):
        captured(Holding(array_is_written), (X,))
