"""Buffers of the arena: none overlaps another that is in use at the same time."""

import gc
import mmap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abele.targets.cpu.emitted.memory import ALIGNMENT, allocated, planned
from abele.targets.translation.places import Buffer, Kind
from helpers.properties import examples

LIFE = st.tuples(st.integers(0, 12), st.integers(0, 5))
TYPES = st.sampled_from([torch.float32, torch.float64, torch.bool, torch.int64])


def lives_of(described):
    return {
        Buffer(Kind.ARENA, i, dtype, size): (first, first + length)
        for i, (size, dtype, (first, length)) in enumerate(described)
    }


@examples(200)
@given(described=st.lists(st.tuples(st.integers(0, 200), TYPES, LIFE), max_size=20))
def test_what_is_alive_at_the_same_time_does_not_overlap(described):
    lives = lives_of(described)
    offsets, size = planned(lives)
    assert set(offsets) == {buffer for buffer in lives if buffer.size}
    for a, begin in offsets.items():
        assert begin % ALIGNMENT == 0
        assert begin + a.bytes <= size
        for b, other in offsets.items():
            together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
            if a is not b and together:
                assert begin + a.bytes <= other or other + b.bytes <= begin


@examples(100)
@given(described=st.lists(st.tuples(st.integers(1, 200), TYPES, LIFE), min_size=1, max_size=20))
def test_the_arena_is_no_larger_than_all_buffers_and_no_smaller_than_those_in_use(described):
    lives = lives_of(described)
    _, size = planned(lives)
    rounded = {buffer: -(-buffer.bytes // ALIGNMENT) * ALIGNMENT for buffer in lives}
    in_use = [
        sum(rounded[buffer] for buffer, (first, last) in lives.items() if first <= t <= last)
        for t in range(18)
    ]
    assert max(in_use) <= size <= sum(rounded.values())


def test_one_after_the_other_share_a_place():
    lives = lives_of([(100, torch.float32, (i, 0)) for i in range(10)])
    assert planned(lives)[1] == 448


def test_only_buffers_of_the_arena_are_placed():
    lives = {Buffer(kind, 0, torch.float32, 4): (0, 1) for kind in Kind}
    offsets, size = planned(lives)
    assert [buffer.kind for buffer in offsets] == [Kind.ARENA]
    assert size == ALIGNMENT


@pytest.mark.parametrize("size", [0, 1, 5000, (1 << 21) - 1, 1 << 21, (1 << 22) + 64])
def test_memory_is_aligned_and_large_enough(size):
    memory, release = allocated(size)
    assert memory.data_ptr() % ALIGNMENT == 0
    assert memory.numel() >= size
    memory[:size] = 7
    assert bool((memory[:size] == 7).all())
    release()
    assert size < 1 << 21 or not memory.any()  # new pages have zeros
    memory[:size] = 8
    assert bool((memory[:size] == 8).all())


def test_memory_outlives_what_made_it_and_no_huge_pages_are_no_error(monkeypatch):
    def refuse(pages, *arguments):
        raise OSError(22, "Invalid argument")

    class Pages(mmap.mmap):
        madvise = refuse

    monkeypatch.setattr(mmap, "mmap", Pages)
    memory = allocated(1 << 21)[0].fill_(3)
    gc.collect()
    assert int(memory.min()) == 3
