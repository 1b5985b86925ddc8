"""Sums through shared memory: the same bits everywhere, and nobody waits for the dead."""

import gc
import itertools
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch

from abele.collectives import torch_group
from abele.collectives.torch_group import SharedSums
from abele.errors import RankLostError
from helpers.instances import together

pytestmark = pytest.mark.skipif(not torch_group._usable(), reason="only where it is used")
SMALL_SLOT = 4096


def nothing_wrong():
    """Waiting for long is no reason to stop."""


def test_nothing_but_the_memory_itself_is_opened(tmp_path):
    """Who writes to the store could otherwise name a device, or a file of somebody else."""
    size = 4096
    memory, other = os.memfd_create("abele-sums"), os.memfd_create("other")
    pipe, _ = ends = os.pipe()
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    for each in (memory, other, file):
        os.ftruncate(each, size)
    os.close(torch_group._open_of(os.getpid(), memory, size))
    for each in (other, pipe, file, 999):
        with pytest.raises(FileNotFoundError):
            torch_group._open_of(os.getpid(), each, size)
    with pytest.raises(PermissionError):
        torch_group._open_of(os.getpid(), memory, size + 1)
    for each in (memory, other, file, *ends):
        os.close(each)


@pytest.fixture
def sums(boards):
    """Makes the memory of several processes; closes it."""
    made = []

    def make(count):
        made.extend(together(boards(count), SharedSums.of))
        assert None not in made
        return made

    yield make
    for one in made:
        one.close()


def values(count, numel, dtype):
    made = torch.Generator().manual_seed(numel)
    wide = 100 * torch.randn(count, numel, generator=made, dtype=torch.float64)
    return wide.to(dtype)


def in_order(rows):
    """What every process must end with, to the bit."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def added(made, rows):
    """The sums that processes get of their rows."""
    tensors = [row.clone() for row in rows]
    ranks = range(len(made))
    together(ranks, lambda rank: made[rank].all_reduce(tensors[rank], nothing_wrong))
    return tensors


SIZES = (1, 7, 16, 17, 1024, 1025, 5000)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)


@pytest.mark.parametrize("everybody", [True, False], ids=["adds all", "adds a part"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_end_with_the_bits_of_the_sum_in_order(sums, monkeypatch, count, everybody):
    monkeypatch.setattr(torch_group, "SLOT_BYTES", SMALL_SLOT)
    monkeypatch.setattr(torch_group, "MOST_WHO_ADD_ALL", count if everybody else 1)
    monkeypatch.setattr(torch_group, "_WORTH_SHARING", 0)
    made = sums(count)
    for numel, dtype in itertools.product(SIZES, DTYPES):
        rows = values(count, numel, dtype)
        wanted = in_order(rows)
        for result in added(made, rows):
            assert torch.equal(result, wanted), (numel, dtype)


def test_shape_stays_and_neighbours_are_not_touched(sums):
    flat = [torch.arange(20.0), torch.ones(20)]
    made = sums(2)
    together(
        range(2), lambda rank: made[rank].all_reduce(flat[rank][5:17].view(3, 4), nothing_wrong)
    )
    assert flat[0][5:17].tolist() == [i + 1.0 for i in range(5, 17)]
    assert flat[1].tolist() == [1.0] * 5 + flat[0][5:17].tolist() + [1.0] * 3


def test_not_a_number_has_the_same_bits_everywhere(sums):
    rows = torch.tensor([[0x7FC00001, 0x7F800000], [-0x3FFFFE, 0x3F800000]], dtype=torch.int32)
    first, second = added(sums(2), rows.view(torch.float32))
    assert first.isnan().tolist() == [True, False]
    assert torch.equal(first.view(torch.int32), second.view(torch.int32))


def test_who_is_late_reads_what_belongs_to_its_turn(sums, monkeypatch):
    monkeypatch.setattr(torch_group, "SLOT_BYTES", SMALL_SLOT)
    made, turns = sums(3), 40

    def run(rank):
        results = []
        for turn in range(turns):
            if (turn + rank) % 7 == 0:
                time.sleep(0.003)
            tensor = torch.full((1500 if turn % 5 else 3,), float(10**rank * (turn + 1)))
            made[rank].all_reduce(tensor, nothing_wrong)
            results.append(tensor.unique().tolist())
        return results

    assert together(range(3), run) == [[[111.0 * (turn + 1)] for turn in range(turns)]] * 3


@pytest.mark.parametrize("pieces", [0, 2], ids=["before its first sum", "in the middle of a sum"])
def test_who_dies_is_seen_by_who_waits(boards, monkeypatch, pieces):
    monkeypatch.setattr(torch_group, "SLOT_BYTES", SMALL_SLOT)
    with subprocess.Popen(["sleep", "60"]) as dying:
        pids = [os.getpid(), dying.pid]
        made = [SharedSums(board, pids) for board in boards(2)]
        assert together(made, SharedSums._map) == [True, True]
        waits = made[0]

        def check():
            gone = waits.dead()
            if gone is not None:
                raise RankLostError(f"process {gone} died")
            dying.kill()  # seen to be waited for

        def run(one):
            if one is waits:
                with pytest.raises(RankLostError, match="process 1 died"):
                    one.all_reduce(torch.ones(4 * SMALL_SLOT // 4), check)
            elif pieces:
                one.all_reduce(torch.ones(pieces * SMALL_SLOT // 4), nothing_wrong)

        assert waits.dead() is None
        together(made, run)
        assert waits.dead() == 1
        for one in made:
            one.close()


def test_nothing_is_left(boards):
    def mapped():
        return Path("/proc/self/maps").read_text().count("abele-sums")

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    made = boards(2)
    gc.collect()  # of earlier tests
    before, shown = (descriptors(), mapped()), set(Path("/dev/shm").iterdir())
    both = together(made, SharedSums.of)
    added(both, torch.ones(2, 9))
    assert mapped() == before[1] + 2
    assert set(Path("/dev/shm").iterdir()) == shown
    for one in both:
        one.close()
    del one, both
    gc.collect()
    assert (descriptors(), mapped()) == before


@pytest.mark.parametrize("differs", ["host", "switch"])
def test_processes_that_cannot_share_agree_to_do_without(boards, monkeypatch, differs):
    if differs == "host":
        names = iter(["one", "other"])
        monkeypatch.setattr(torch_group, "_host", lambda: next(names))
    else:
        monkeypatch.setenv(torch_group.SWITCH, "0")
    assert together(boards(2), SharedSums.of) == [None, None]
