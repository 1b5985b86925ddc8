"""Which operations become one loop, and what has to run before what."""

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abele.program.aliasing import lifetimes
from abele.targets.cpu.emitted.memory import ordered, used_by
from abele.targets.translation import groups
from abele.targets.translation.groups import grouped
from abele.targets.translation.operations import Call, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride
from helpers.emitted_places import elements, place_of
from helpers.properties import examples

F32 = torch.float32


def memory(size=12, kind=Kind.ARENA):
    return Buffer(kind, 0, F32, size)


def whole(buffer, *shape):
    shape = shape or (buffer.size,)
    return Place(buffer, shape, contiguous_stride(shape))


class Written:
    """A program that is written operation by operation."""

    def __init__(self):
        self.operations = []

    def loop(self, result, *operands):
        types = [F32] * len(operands)
        self._add(Pointwise(list(operands), [result], list(operands), types, str))

    def call(self, results, operands):
        self._add(Call(list(operands), list(results), "call()"))

    def _add(self, operation):
        operation.position = len(self.operations)
        self.operations.append(operation)

    def numbers(self):
        """Operations by number, unit by unit in their order."""
        units = ordered(grouped(self.operations))
        return [[operation.position for operation in unit.operations] for unit in units]


def test_an_operation_joins_what_made_its_operand():
    a, b, c = (whole(memory()) for _ in range(3))
    program = Written()
    program.loop(b, a)
    program.loop(c, b)
    assert program.numbers() == [[0, 1]]


def test_a_call_stands_alone():
    a, b, c = (whole(memory()) for _ in range(3))
    program = Written()
    program.loop(b, a)
    program.call([c], [b])
    program.loop(a, c)
    assert program.numbers() == [[0], [1], [2]]


def test_nothing_joins_that_waits_for_something_in_between():
    a, b, c, d = (whole(memory()) for _ in range(4))
    program = Written()
    program.loop(b, a)
    program.call([c], [b])
    program.loop(d, b, c)
    assert program.numbers() == [[0], [1], [2]]


def test_nothing_joins_two_loops_of_which_one_waits_for_the_other():
    a, b, c, d, e = (whole(memory()) for _ in range(5))
    program = Written()
    program.loop(b, a)
    program.call([c], [b])
    program.loop(d, c)
    program.loop(e, b, d)
    assert program.numbers() == [[0], [1], [2, 3]]


def test_loops_become_one_where_a_later_one_reads_both():
    a, b, c, d, e = (whole(memory()) for _ in range(5))
    program = Written()
    program.loop(b, a)
    program.loop(d, c)
    program.loop(e, b, d)
    assert program.numbers() == [[0, 1, 2]]


def test_who_waits_for_a_joined_loop_waits_for_all_of_it():
    a, b, c, d, e, f, g, h = (whole(memory()) for _ in range(8))
    program = Written()
    program.loop(b, a)
    program.call([c], [b])
    program.loop(d, a)
    program.loop(e, c)
    program.call([f], [d])  # waits for a loop that waits for nothing yet
    program.loop(g, d, e)  # joins it with one that waits for the first call
    program.loop(h, b, f)
    assert program.numbers() == [[0], [1], [2, 3, 5], [4], [6]]


def test_a_slot_is_written_after_what_reads_it():
    slot = whole(memory(kind=Kind.INPUT))
    a, b = whole(memory()), whole(memory())
    program = Written()
    program.call([a], [slot])
    program.loop(b, a)
    program.loop(slot, b)
    assert program.numbers() == [[0], [1, 2]]


def test_a_slot_that_is_read_in_another_order_is_not_written_meanwhile():
    slot = memory(kind=Kind.INPUT)
    turned = Place(slot, (3, 4), (1, 3))
    a = whole(memory(), 3, 4)
    program = Written()
    program.loop(a, turned)
    program.loop(whole(slot, 3, 4), a)
    assert program.numbers() == [[0], [1]]


def test_pieces_of_one_memory_are_written_in_any_order_and_read_after_all():
    joined = memory(24)
    a, b, c = whole(memory()), whole(memory()), whole(memory(24))
    program = Written()
    program.loop(Place(joined, (12,), (1,), 12), a)
    program.loop(Place(joined, (12,), (1,), 0), b)
    program.loop(c, whole(joined))
    units = grouped(program.operations)
    assert [len(unit.before) for unit in units] == [0, 0, 2]


def test_shapes_of_loops_must_agree_unless_memory_is_read_in_order():
    a, b, c = memory(), memory(), memory()
    program = Written()
    program.loop(whole(b, 12), whole(a, 12))
    program.loop(whole(c, 3, 4), whole(b, 3, 4))
    assert program.numbers() == [[0, 1]]
    program = Written()
    program.loop(Place(b, (3, 4), (1, 3)), whole(a, 3, 4))
    program.loop(whole(c, 12), whole(b, 12))
    assert program.numbers() == [[0], [1]]


def test_loops_do_not_grow_without_end():
    places = [whole(memory()) for _ in range(3 * groups._MOST_OPERATIONS)]
    program = Written()
    for a, b in itertools.pairwise(places):
        program.loop(b, a)
    sizes = [len(unit) for unit in program.numbers()]
    assert max(sizes) == min(groups._MOST_OPERATIONS, groups._MOST_TENSORS - 1)
    assert sum(sizes) == len(places) - 1


# -- any program -----------------------------------------------------------------------------------


def random_program(choose, length):
    """Loops and calls on views of a few pieces of memory, as wild as places can be."""
    program = Written()
    if choose.random() < 0.5:
        return _without_writes(program, choose, 2 * length)
    kinds = [Kind.INPUT, Kind.ARENA, Kind.ARENA, Kind.ARENA]
    buffers = [memory(choose.choice([12, 24]), choose.choice(kinds)) for _ in range(5)]
    for _ in range(length):
        result = _view(choose, buffers, written=True)
        operands = [_view(choose, buffers) for _ in range(choose.randint(0, 3))]
        if choose.random() < 0.25:
            program.call([result], operands)
            continue
        operands = [each for each in operands if _may_be_read(each, result)]
        program.loop(result, *operands)
    return program


def _without_writes(program, choose, length):
    """Each operation makes a tensor of its own, as in most programs."""
    places = [whole(memory(kind=Kind.INPUT)) for _ in range(2)]
    for _ in range(length):
        operands = choose.sample(places, min(len(places), choose.randint(1, 3)))
        result = whole(memory())
        if choose.random() < 0.3:
            program.call([result], operands)
        else:
            program.loop(result, *operands)
        places.append(result)
    return program


def _view(choose, buffers, *, written=False):
    buffer = choose.choice(buffers)
    view = torch.empty(buffer.size, device="meta")
    shapes = [(12,), (3, 4), (4, 3), (1, 12), (2, 6)]
    view = view[choose.choice([0, buffer.size - 12]) :][:12].view(choose.choice(shapes))
    steps = [
        lambda x: x.t() if x.dim() == 2 else x,
        lambda x: x[1:],
        lambda x: x[..., 1:],
        lambda x: x[..., ::2],
        lambda x: x,
        lambda x: x[0],
    ]
    if not written:
        steps.append(lambda x: x[:1])
    for _ in range(choose.randint(0, 2)):
        changed = choose.choice(steps)(view)
        view = changed if changed.numel() and changed.dim() else view
    return place_of(view, buffer)


def _may_be_read(operand, result):
    """An operand is broadcast to the result, and no element is written before it is read."""
    try:
        fits = torch.broadcast_shapes(operand.shape, result.shape) == result.shape
    except RuntimeError:
        return False
    overlaps = operand.buffer is result.buffer and set(elements(operand)) & set(elements(result))
    return fits and (not overlaps or operand == result)


def conflict(a, b):
    """Whether the order of two operations matters."""
    pairs = [(x, y) for x in a.writes for y in (*b.writes, *b.reads)]
    pairs += [(x, y) for x in a.reads for y in b.writes]
    return any(
        x.buffer is y.buffer and not set(elements(x)).isdisjoint(elements(y)) for x, y in pairs
    )


def turns(unit, place):
    """Which element a loop touches in each of its turns."""
    shape = unit.shape if unit.shape is not None else (unit.size,)
    if place.size == unit.size and place.contiguous:
        return elements(Place(place.buffer, shape, contiguous_stride(shape), place.offset))
    return elements(Place(place.buffer, shape, place.over(shape), place.offset))


def same_turns(unit, a, b):
    """Whether no element passes from one turn of a loop to another between two operations."""
    pairs = [(x, y) for x in a.writes for y in (*b.writes, *b.reads)]
    pairs += [(x, y) for x in a.reads for y in b.writes]
    for x, y in pairs:
        if x.buffer is not y.buffer:
            continue
        turn = {at: i for i, at in enumerate(turns(unit, x))}
        if any(turn.get(at, i) != i for i, at in enumerate(turns(unit, y))):
            return False
    return True


@examples(400)
@given(seed=st.integers(0, 2**32), length=st.integers(2, 16))
def test_every_order_keeps_what_each_operation_reads(seed, length):
    program = random_program(random.Random(seed), length)
    units = ordered(grouped(program.operations))
    place_in_order = {
        operation: (number, index)
        for number, unit in enumerate(units)
        for index, operation in enumerate(unit.operations)
    }
    assert len(place_in_order) == len(program.operations)
    for i, a in enumerate(program.operations):
        for b in program.operations[i + 1 :]:
            if conflict(a, b):
                assert place_in_order[a] < place_in_order[b]
                if place_in_order[a][0] == place_in_order[b][0]:
                    assert same_turns(units[place_in_order[a][0]], a, b)


@examples(200)
@given(seed=st.integers(0, 2**32), length=st.integers(2, 16))
def test_any_order_that_units_allow_is_as_good(seed, length):
    choose = random.Random(seed)
    program = random_program(choose, length)
    units, done = grouped(program.operations), []
    while len(done) < len(units):
        ready = [u for u in units if u not in done and u.before <= set(done)]
        done.append(choose.choice(ready))
    number = {operation: i for i, unit in enumerate(done) for operation in unit.operations}
    for i, a in enumerate(program.operations):
        for b in program.operations[i + 1 :]:
            assert number[a] <= number[b] or not conflict(a, b)


@examples(200)
@given(seed=st.integers(0, 2**32))
def test_slices_that_are_called_disjoint_share_no_element(seed):
    choose = random.Random(seed)
    buffers = [memory(24)]
    a, b = (_view(choose, buffers, written=True) for _ in range(2))
    b = Place(b.buffer, a.shape, a.stride, b.offset)
    if groups._disjoint(a, b):
        assert set(elements(a)).isdisjoint(elements(b))


def test_memory_lives_from_its_first_use_to_its_last():
    a, b, c = (memory() for _ in range(3))
    program = Written()
    program.call([whole(b)], [whole(a)])
    program.call([whole(c)], [whole(a)])
    program.call([whole(a)], [whole(c)])
    lives = lifetimes(map(used_by, ordered(grouped(program.operations))))
    assert [lives[each] for each in (a, b, c)] == [(0, 2), (0, 0), (1, 2)]


@pytest.mark.parametrize("kind", [Kind.INPUT, Kind.ARENA])
def test_what_writes_a_slot_runs_as_soon_as_it_can(kind):
    slot, a, b, c, d = (whole(memory()) for _ in range(5))
    slot.buffer.kind = kind
    program = Written()
    program.call([a], [slot])
    program.call([c], [b])
    program.call([d], [c])
    program.call([slot], [a])
    assert program.numbers().index([3]) == (1 if kind is Kind.INPUT else 3)
