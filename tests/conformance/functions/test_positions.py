"""Ring buffers: slices of tensors at positions that are numbers, one program for all of them."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.errors import AbeleError
from helpers.compiled_functions import Task, batch, compiles, same_as_plain


class Ring(nn.Module):
    """A linear layer with a ring buffer of its results."""

    def __init__(self, size=12):
        super().__init__()
        self.fc, self.size = nn.Linear(5, 3), size
        self.register_buffer("queue", torch.randn(size, 3))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.ptr, self.number = 0, 0


def trained(wrap, store, size=12, rows=None, before=lambda ring, i: None):
    """Return a case that trains with a ring buffer, which ``store`` writes or reads."""
    ring = Ring(size)
    optimizer = torch.optim.SGD(ring.parameters(), lr=0.1)

    @wrap
    def step(x, y):
        out = ring.fc(x)
        loss = F.cross_entropy(out, y) + (out @ ring.queue.clone().t()).square().mean()
        with torch.no_grad():
            found = store(ring, out.detach(), loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, found

    def call(i):
        before(ring, i)
        return step(*batch(i, 4 if rows is None else rows(i)))

    return call, lambda: (ring, ring.ptr, ring.number)


def enqueue(ring, keys, loss):
    """Write keys at the pointer of a state tensor, as published code of momentum contrast does."""
    count = keys.shape[0]
    ptr = int(ring.queue_ptr)
    assert ring.size % count == 0
    ring.queue[ptr : ptr + count, :] = keys
    ptr = (ptr + count) % ring.size
    ring.queue_ptr[0] = ptr


@compiles(programs=1, calls=9)
def test_a_queue_whose_pointer_is_a_state_tensor(wrap):
    return trained(wrap, enqueue)


@compiles(programs=1, calls=9, target="cpu")
def test_a_queue_in_compiled_code(wrap):
    return trained(wrap, enqueue)


@compiles(programs=2, calls=10)
def test_a_last_short_batch_gets_another_program(wrap):
    return trained(wrap, enqueue, rows=lambda i: 2 if i in (4, 7) or i > 8 else 4)


@compiles(programs=1, calls=9)
def test_a_pointer_that_other_code_sets_and_loads(wrap):
    def before(ring, i):
        if i == 4:
            ring.queue_ptr.fill_(6)
        elif i == 6:
            state = {**ring.state_dict(), "queue_ptr": torch.tensor([1])}
            ring.load_state_dict(state)
        elif i == 8:
            ring.queue_ptr[0] = 0

    return trained(wrap, enqueue, size=16, before=before)


def _by_item(ring, keys, loss):
    ptr = ring.queue_ptr.item()
    ring.queue[ptr : 4 + ptr] = keys
    ring.queue_ptr.fill_((ptr + 4) % ring.size)


def _by_columns(ring, keys, loss):
    ptr = int(ring.queue_ptr[0])
    ring.queue.t()[:, ptr : ptr + 4] = keys.t()
    ring.queue_ptr.add_(4).remainder_(ring.size)


def _one_of_columns(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    ring.queue[..., ptr % 3] = 0.5
    ring.queue[ptr, 1:] = keys[0, 1:]
    ring.queue_ptr[0] = (2 * ptr + 1) // 1 % ring.size


@pytest.mark.parametrize("store", [_by_item, _by_columns, _one_of_columns])
def test_forms_of_positions(store):
    (made,) = same_as_plain(lambda wrap: trained(wrap, store), 9)
    assert (made.eager, len(made.programs)) == (None, 1)


def _by_attribute(ring, keys, loss):
    ring.queue[ring.ptr : ring.ptr + keys.size(0)] = keys
    ring.ptr = (ring.ptr + keys.size(0)) % ring.size


def _before_the_write(ring, keys, loss):
    ring.ptr = (ring.ptr + 4) % ring.size
    ring.queue[ring.ptr : ring.ptr + 4] = keys


def _of_numbers(ring, keys, loss):
    ring.queue[ring.number % ring.size, 0] = loss.item()
    ring.number += 1


@pytest.mark.parametrize("store", [_by_attribute, _before_the_write, _of_numbers])
def test_positions_of_python(store):
    (made,) = same_as_plain(lambda wrap: trained(wrap, store), 9)
    assert (made.eager, len(made.programs)) == (None, 1)


def test_a_count_that_leaves_the_tensor_and_is_logged_is_plain_pytorchs():
    def before_the_first(ring, keys, loss):
        ring.ptr = (ring.ptr + 3) % ring.size
        ring.queue[ring.ptr - 1] = ring.ptr // 2
        ring.number = ring.ptr + 1

    (made,) = same_as_plain(lambda wrap: trained(wrap, before_the_first), 9)
    assert made.programs[0].calls > 1


def test_an_error_of_a_write_beyond_the_end_leaves_everything_as_plain_pytorch_does():
    def build(wrap):
        call, state = trained(wrap, enqueue)
        ring = state()[0]

        def failing(i):
            if i != 4:
                return call(i)
            ring.queue_ptr.fill_(10)
            with pytest.raises(RuntimeError, match="expanded size"):
                call(i)
            ring.queue_ptr.fill_(8)
            return None

        return failing, state

    (made,) = same_as_plain(build, 8)
    assert (made.eager, len(made.programs)) == (None, 1)


def _by_fill(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    ring.queue[:ptr] = 0.5
    ring.queue_ptr[0] = (ptr + 4) % ring.size


def _by_read(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    ring.queue_ptr[0] = (ptr + 4) % ring.size
    return ring.queue[ptr].clone()


def _by_range(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    for i in range(ptr, ptr + 4):
        ring.queue[i] = keys[i - ptr]
    ring.queue_ptr[0] = (ptr + 4) % ring.size


def _by_type(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    if type(ptr) is not int:
        raise TypeError
    ring.queue[ptr] = keys[0]
    ring.queue_ptr[0] = (ptr + 4) % ring.size


def _by_caught(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    try:
        found = {0: 1.0, 4: 2.0}[ptr]
    except (AbeleError, KeyError):
        found = 3.0
    ring.queue[:, 0] += found
    ring.queue_ptr[0] = (ptr + 4) % ring.size


@pytest.mark.parametrize("store", [_by_fill, _by_read, _by_range, _by_type, _by_caught])
def test_what_needs_the_value_gets_a_program_per_position(store):
    (made,) = same_as_plain(lambda wrap: trained(wrap, store), 9)
    assert (made.eager, len(made.programs)) == (None, 3)


def _to_the_end(ring, keys, loss):
    ptr, count = ring.queue_ptr.item(), len(keys)
    if ptr + count > ring.size:
        ring.queue[-count:] = keys
        ptr = 0
    ring.queue[ptr : ptr + count] = keys
    ring.queue_ptr.fill_((ptr + count) % (ring.size + 1))


def _every_third(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    if ptr % 3 == 0:
        ring.queue.mul_(0.5)
    ring.queue_ptr += 1


@pytest.mark.parametrize("store", [_to_the_end, _every_third])
def test_decisions_by_a_number_of_the_state_select_programs(store):
    (made,) = same_as_plain(lambda wrap: trained(wrap, store, size=14), 12)
    assert (made.eager, len(made.programs)) == (None, 2)


def _logged(ring, keys, loss):
    ptr = int(ring.queue_ptr)
    ring.queue_ptr[0] = (ptr + 5) % ring.size
    ring.number = ptr
    return {"before": ptr, "next": (ptr + 5) % ring.size, "after": int(ring.queue_ptr)}


def test_results_have_the_numbers_of_their_calls():
    same_as_plain(lambda wrap: trained(wrap, _logged), 9)


def test_a_counter_that_others_write_is_a_position_once_it_has_changed():
    def build(wrap):
        task, table = Task(), torch.randn(12, 3)
        place = torch.zeros((), dtype=torch.int32)

        @wrap
        def step(x, y):
            table[int(place)] = x[0, 0]
            return task.update(F.cross_entropy(task.model(x) + table.sum(), y))

        def call(i):
            place.fill_(i)
            return step(*batch(i))

        return call, lambda: (task, table)

    (made,) = same_as_plain(build, 9)
    assert (made.eager, len(made.programs)) == (None, 2)
