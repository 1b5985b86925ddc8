"""Real tensors that a traced function uses become slots; tensors in one memory share one."""

import pytest
import torch

from abele import _torch
from abele.errors import CaptureError
from abele.program import Role
from abele.trace import tracer
from abele.trace.adopted import Adopted, SharedMemoryError
from abele.trace.tensor_names import Lookup


def adopted(body, **options):
    """The slots of a traced function, and the program."""
    kept = Adopted(lambda tensor: (f"tensor{len(kept.named)}", Role.BUFFER), **options)
    program, _ = tracer.trace(
        "forward", lambda values: ([body()], None), [], _torch.static_fakes(), Lookup(()), kept
    )
    return kept, program


@pytest.fixture
def matrix():
    return torch.arange(12.0).view(3, 4)


def test_a_tensor_is_a_slot_of_its_layout(matrix):
    kept, program = adopted(lambda: matrix * matrix)
    assert [(each.name, each.role) for each in kept.named] == [("tensor0", Role.BUFFER)]
    assert kept.tensors[0] is matrix
    assert _torch.memory_of(kept.named[0].value) == _torch.memory_of(matrix)
    assert [slot.name for slot in program.inputs] == ["tensor0"]


def test_tensors_in_other_memory_have_slots_of_their_own(matrix):
    other = matrix.clone()
    kept, _ = adopted(lambda: matrix + other)
    assert [each is matrix for each in kept.tensors] == [True, False]


def views(matrix):
    return {
        "row": matrix[1],
        "column": matrix[:, 1],
        "transposed": matrix.t(),
        "other shape": matrix.view(-1),
        "every second": matrix.view(-1)[1::2],
        "diagonal": matrix.diagonal(),
    }


@pytest.mark.parametrize("name", views(torch.ones(3, 4)))
def test_views_of_a_tensor_share_its_slot(matrix, name):
    view = views(matrix)[name]
    kept, program = adopted(lambda: matrix.sum() + (view * 2).sum())
    assert len(kept.named) == 1
    (result,) = _run(program, kept)
    assert torch.equal(result, matrix.sum() + (view * 2).sum())


@pytest.mark.parametrize("name", views(torch.ones(3, 4)))
def test_a_write_through_a_view_changes_its_tensor(matrix, name):
    view = views(matrix)[name]

    def write():
        view.mul_(2)
        return matrix + 0

    before = matrix.clone()
    kept, program = adopted(write, whole=frozenset({_torch.memory_of(matrix)}))
    assert torch.equal(matrix, before)  # nothing is computed yet
    assert [slot.mutated for slot in program.inputs] == [True]
    result = _run(program, kept)[0]
    write()
    assert torch.equal(result, matrix)


def test_a_permuted_tensor_is_contiguous_in_its_slot(matrix):
    permuted = matrix.t()
    kept, program = adopted(lambda: permuted.sum(0))
    assert kept.named[0].value.is_contiguous()
    assert kept.named[0].value.shape == (3, 4)
    (result,) = _run(program, kept)
    assert torch.equal(result, permuted.sum(0))


def test_a_view_that_is_met_first_lacks_elements_until_the_whole_memory_is_a_slot(matrix):
    row, memory = matrix[1], _torch.memory_of(matrix)
    with pytest.raises(SharedMemoryError, match="two tensors that overlap in memory") as caught:
        adopted(lambda: row.sum() + matrix.sum())
    assert caught.value.memory == memory
    kept, program = adopted(lambda: row.sum() + matrix.sum(), whole=frozenset({memory}))
    assert [tuple(each.value.shape) for each in kept.named] == [(12,)]
    (result,) = _run(program, kept)
    assert torch.equal(result, row.sum() + matrix.sum())


def test_a_tensor_with_gaps_is_a_slot_of_the_whole_memory(matrix):
    column = matrix[:, 1]
    kept, program = adopted(lambda: column * 2)
    assert tuple(kept.named[0].value.shape) == (12,)
    (result,) = _run(program, kept)
    assert torch.equal(result, column * 2)


def test_one_memory_with_two_types_is_refused(matrix):
    numbers = matrix.view(torch.int32)
    with pytest.raises(SharedMemoryError, match="have different types"):
        adopted(lambda: matrix.sum() + numbers.sum())


@pytest.mark.parametrize("view", [torch.conj, lambda z: z.conj().imag])
def test_conjugated_views_are_refused(view):
    seen = view(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(CaptureError, match=r"conjugated or negated view.*resolve_conj\(\)"):
        adopted(lambda: seen * 2)


@pytest.mark.parametrize(("size", "is_read"), [(64, True), (65, False)])
def test_values_of_small_tensors_can_be_read(size, is_read):
    tensor = torch.ones(size)

    def scaled():
        return tensor * float(tensor[0])

    if not is_read:
        with pytest.raises(_torch.DataDependentOutputException, match="_local_scalar_dense"):
            adopted(scaled)
        return
    kept, _ = adopted(scaled)
    (reading,) = kept.read
    assert reading.holds()
    tensor[1] = 2  # of which nothing depends
    assert reading.holds()
    tensor[0] = 2
    assert not reading.holds()


def test_a_value_that_follows_from_another_one_may_stay():
    count, unknown = torch.ones(()), torch.ones(3)

    def counted():
        count.add_(1)
        unknown.mul_(2)
        assert not count > 9
        assert (torch.tensor(4.0) * count).any()
        return unknown * 2

    kept, _ = adopted(counted)
    assert len(kept.read) == 2
    for value, holds in [(5.0, True), (-1.0, False), (8.5, False), (7.0, True)]:
        count.fill_(value)
        assert all(each.holds() for each in kept.read) == holds


def _run(program, kept):
    return program.graph(*[each.value.clone() for each in kept.named])
