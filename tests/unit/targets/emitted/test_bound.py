"""Calls of a program with the same state each time give what other calls give."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import passes
from abele.errors import IndexCheckError
from abele.targets.cpu.emitted.lowering import Emitted
from helpers.emitted_programs import traced

X = torch.linspace(-2, 3, 12).reshape(3, 4)
BATCH = (X, X * 2 - 1, X.cos())

pytestmark = pytest.mark.compiler


def added(x, total):
    total.add_(x)
    return (total * 2).t(), total.sum()


def with_torch(x, total):
    total.add_(torch.special.i0(x))
    return total.exp()


def looked_up(index, table):
    table.mul_(2)
    return F.embedding(index, table)


def made(function, batch, state):
    """The compiled program of a function, and where its batch and its state are."""
    program = traced(function.__name__, function, [batch], [state]).program
    program = passes.run_only(passes.run(program), Emitted.passes)
    names = [slot.name for slot in program.inputs]
    return Emitted().compile(program), names.index("input0"), 1 - names.index("input0")


def bound_to(compiled, batch, state, at):
    arguments = [state, state]
    arguments[1 - at] = batch
    return compiled.bound(arguments, [1 - at])


@pytest.fixture(scope="module")
def sums():
    return made(added, X, torch.ones(3, 4))


def by_run(sums, rows, state):
    compiled, batch_at, state_at = sums
    inputs = [None, None]
    inputs[batch_at], inputs[state_at] = rows, state
    return compiled.run(inputs)


@pytest.fixture
def pair(sums):
    """The same state for calls of both kinds, and a bound call."""
    compiled, _, at = sums
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    call = bound_to(compiled, X, mine, at)
    assert call is not None
    return call, mine, theirs


def same(sums, pair, rows):
    call, mine, theirs = pair
    actual, expected = call([rows]), by_run(sums, rows, theirs)
    assert all(map(torch.equal, [*actual, mine], [*expected, theirs]))
    return actual


def test_each_call_gives_the_bits_of_a_call_with_all_arguments(sums, pair):
    results = [same(sums, pair, rows)[0] for rows in BATCH]
    assert len({each.data_ptr() for each in results}) == 3
    assert not torch.equal(results[0], results[1])


@pytest.mark.parametrize(
    "rows",
    [X.t().contiguous().t(), X[:1].expand(3, 4), torch.cat([X, X], 1)[:, 2:6]],
    ids=["transposed", "expanded", "a slice"],
)
def test_rows_lie_in_any_order(sums, pair, rows):
    for each in (X, rows, X, rows):
        same(sums, pair, each)


def test_a_call_with_other_state_between_changes_nothing(sums, pair):
    same(sums, pair, X)
    by_run(sums, X, torch.full((3, 4), 7.0))
    same(sums, pair, X)
    other = bound_to(sums[0], X, torch.full((3, 4), 7.0), sums[2])
    other([X])
    same(sums, pair, X)


def test_state_that_moves_is_used_where_it_lies(sums, pair):
    _, mine, _ = pair
    same(sums, pair, X)
    mine.data = mine.data.clone()
    same(sums, pair, X)
    mine.data = mine.data.t().contiguous().t()
    for rows in BATCH:
        same(sums, pair, rows)


def test_programs_of_which_torch_computes_something_are_not_bound():
    state = torch.ones(3, 4)
    compiled, _, at = made(with_torch, X, state)
    assert bound_to(compiled, X, state, at) is None


def test_indices_are_looked_at_before_each_call():
    index, table = torch.tensor([0, 2]), torch.ones(3, 4)
    compiled, _, at = made(looked_up, index, table)
    call = bound_to(compiled, index, table, at)
    assert call([index])[0].tolist() == [[2.0] * 4] * 2
    with pytest.raises(IndexCheckError, match="3"):
        call([index + 1])
    assert table.tolist() == [[2.0] * 4] * 3
    assert call([index])[0].tolist() == [[4.0] * 4] * 2
