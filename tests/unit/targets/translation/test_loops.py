"""The C++ of loops, before anybody compiles it."""

import pytest
import torch

from abele.targets.translation import loops
from abele.targets.translation.groups import grouped
from abele.targets.translation.operations import Pointwise
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride

F32 = torch.float32


def place(*shape, stride=None, dtype=F32, offset=0, size=10_000):
    return Place(
        Buffer(Kind.ARENA, 0, dtype, size), shape, stride or contiguous_stride(shape), offset
    )


def loop(result, *operands):
    """The sum of some tensors."""
    types = [result.dtype] * len(operands)
    expression = "({})".format(" + ".join(f"{{{i}}}" for i in range(len(operands)))).format
    return Pointwise(list(operands), [result], list(operands), types, expression)


def kernel(*operations, kept=None):
    """The one loop that these operations become."""
    for position, each in enumerate(operations):
        each.position = position
    (unit,) = grouped(operations)
    kept = [each.result for each in operations] if kept is None else kept
    return loops.LoopWriter(unit, {each.buffer for each in kept}).kernel()


def nesting(made):
    return made.text.count("for (")


def test_tensors_in_order_of_their_memory_are_one_loop():
    made = kernel(loop(place(3, 4, 5), place(3, 4, 5), place(3, 4, 5)))
    assert nesting(made) == 1
    assert made.turns == 60


def test_a_transposed_operand_is_read_where_it_lies():
    made = kernel(loop(place(3, 4), place(3, 4, stride=(1, 3))))
    assert nesting(made) == 2
    assert "p0[i0 + i1 * 3]" in made.text


def test_loops_follow_the_memory_of_the_result():
    made = kernel(loop(place(3, 4, stride=(1, 3)), place(3, 4)))
    assert (made.turns, nesting(made)) == (4, 2)
    assert "p0[i0 + i1 * 4]" in made.text


def test_a_broadcast_operand_is_read_again():
    made = kernel(loop(place(3, 4, 5), place(4, 1)))
    assert nesting(made) == 3
    assert "= p0[i1];" in made.text


def test_dimensions_that_all_tensors_walk_through_alike_become_one():
    made = kernel(loop(place(3, 4, 5), place(3, 1, 1)))
    assert (made.turns, nesting(made)) == (3, 2)


def test_what_only_the_loop_reads_stays_in_a_register():
    a, b, c = place(12), place(12), place(12)
    made = kernel(loop(b, a), loop(c, b), kept=[c])
    assert [buffer for buffer, _ in made.pointers] == [a.buffer, c.buffer]


def test_a_register_is_read_under_another_shape_of_the_same_elements():
    a, b, c = place(1, 3, stride=(7, 2)), place(1, 3, size=3), place(3)
    made = kernel(loop(b, a), loop(c, Place(b.buffer, (3,), (1,))), kept=[c])
    assert [buffer for buffer, _ in made.pointers] == [a.buffer, c.buffer]


def test_what_others_read_is_written():
    a, b, c = place(12), place(12), place(12)
    made = kernel(loop(b, a), loop(c, b))
    assert [buffer for buffer, _ in made.pointers] == [a.buffer, b.buffer, c.buffer]
    assert made.types == ["const float", "float", "float"]


def test_elements_are_read_before_anything_is_computed():
    first, second = place(3, 4), place(3, 4)
    made = kernel(loop(first, place(3, 4)), loop(second, first, place(4)))
    reads = [" = p" in line for line in made.text.splitlines() if line.startswith("  const")]
    assert reads == [True, True, False, False]


def test_operands_are_converted_to_the_type_of_the_computation():
    made = kernel(loop(place(3), place(3, dtype=torch.int64), place(3, dtype=torch.bool)))
    assert made.types == ["const int64_t", "const bool", "float"]
    assert "(float(v1) + float(v2))" in made.text


def test_a_number_has_no_loop():
    made = kernel(loop(place(), place(1, 1)))
    assert (nesting(made), made.turns, made.workers) == (0, 0, 1)


def test_slices_of_one_memory_are_pointers_of_their_own():
    whole = Buffer(Kind.ARENA, 0, F32, 24)
    a, b = Place(whole, (12,), (1,), 0), Place(whole, (12,), (1,), 12)
    made = kernel(loop(place(12), a, b))
    assert made.pointers[:2] == [(whole, 0), (whole, 12)]


def test_a_light_update_that_is_near_stays_with_the_thread_that_calls():
    def workers(size, kind=Kind.INPUT):
        weight = Place(Buffer(kind, 1, F32, size), (size,), (1,))
        step = Place(Buffer(Kind.INPUT, 2, F32, size), (size,), (1,))
        return kernel(loop(weight, weight, step), kept=[weight, step]).workers

    assert workers(1 << 17) == 1  # two tensors of half a MiB
    assert workers((1 << 17) + 8) == 16
    assert workers(1 << 17, Kind.ARENA) == 16  # no update


def test_equal_loops_have_equal_text():
    assert kernel(loop(place(3), place(3))).text == kernel(loop(place(3), place(3))).text


@pytest.mark.parametrize(("size", "workers"), [(10, 1), (8192, 1), (16384, 2), (1 << 20, 128)])
def test_a_loop_has_as_many_threads_as_it_can_feed(size, workers):
    assert kernel(loop(place(size, size=size), place(size, size=size))).workers == workers
