"""Which elementwise results are computed in slices."""

from typing import Any

import torch

from abele.targets.translation.copies import sliced_results
from abele.targets.translation.groups import grouped
from abele.targets.translation.operations import Call, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride

F32 = torch.float32
ROWS, COLUMNS = 6, 5


def memory(*shape, kind=Kind.ARENA):
    buffer = Buffer(kind, 0, F32, torch.Size(shape).numel())
    return Place(buffer, shape, contiguous_stride(shape))


def loop(result, *operands):
    return Pointwise(list(operands), [result], list(operands), [F32] * len(operands), str)


def half(place, index, width=COLUMNS):
    return Place(place.buffer, (place.shape[0], width), place.stride, index * COLUMNS)


def gates():
    """A sum with a vector, and a product of its halves."""
    x, bias, whole = memory(ROWS, 2 * COLUMNS), memory(2 * COLUMNS), memory(ROWS, 2 * COLUMNS)
    result = memory(ROWS, COLUMNS, kind=Kind.OUTPUT)
    return [loop(whole, x, bias), loop(result, half(whole, 0), half(whole, 1))]


def sliced(operations) -> list[Any]:
    return sliced_results(operations, lambda shape, _: memory(*shape))


def test_halves_that_are_multiplied_become_one_loop():
    added, multiplied = gates()
    x, bias = added.reads
    operations = sliced([added, multiplied])
    assert len(grouped(operations)) == 1
    first, second, last = operations
    assert [each.position for each in operations] == [0, 1, 2]
    assert first.reads == [
        half(x, 0),
        Place(bias.buffer, (ROWS, COLUMNS), (0, 1), 0),
    ]
    assert second.operands[1] == Place(bias.buffer, (ROWS, COLUMNS), (0, 1), COLUMNS)
    assert last.operands == last.reads == [*first.writes, *second.writes]
    assert added.result.buffer not in {p.buffer for each in operations for p in each.reads}


def test_what_the_result_is_made_of_is_sliced_too():
    added, multiplied = gates()
    before = loop(added.reads[0], memory(ROWS, 2 * COLUMNS))
    operations = sliced([before, added, multiplied])
    assert len(operations) == 5
    assert len(grouped(operations)) == 1


def stays(operations):
    return sliced(list(operations)) == operations


def test_results_that_something_needs_as_a_whole_stay():
    added, multiplied = gates()
    whole = added.result
    assert stays([added, multiplied, Call([whole], [memory(1)], "call()")])
    assert stays([added, multiplied, loop(memory(ROWS, 2 * COLUMNS), whole)])
    assert stays([added, loop(memory(ROWS, COLUMNS), half(whole, 0))])
    added.result.buffer.kind = Kind.OUTPUT
    assert stays([added, multiplied])


def test_slices_that_share_elements_are_not_computed_twice():
    added, multiplied = gates()
    wide = Place(added.result.buffer, (ROWS, COLUMNS + 1), added.result.stride, COLUMNS - 1)
    assert stays([added, multiplied, loop(memory(ROWS, COLUMNS + 1), wide)])


def test_what_is_no_slice_of_its_dimensions_stays():
    added, _ = gates()
    whole = added.result
    turned = [Place(whole.buffer, (COLUMNS, ROWS), (1, 2 * COLUMNS), i * COLUMNS) for i in (0, 1)]
    assert stays([added, loop(memory(COLUMNS, ROWS), *turned)])
    over = [Place(whole.buffer, (2, COLUMNS), (2 * COLUMNS, 1), i) for i in (0, COLUMNS + 1)]
    assert stays([added, loop(memory(2, COLUMNS), *over)])
    rows = [Place(whole.buffer, (COLUMNS,), (1,), i * COLUMNS) for i in (0, 1)]
    assert stays([added, loop(memory(COLUMNS), *rows)])


def test_a_result_that_is_written_twice_stays():
    added, multiplied = gates()
    assert stays([added, loop(added.result, added.reads[0]), multiplied])
