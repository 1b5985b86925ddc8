"""Batches: which events, in which order, from which position, and how threads end."""

import gc
import itertools
import threading
import time

import numpy as np
import pytest
import torch

from cosmictagger.data.larcv import IMAGE, LABEL, EventFile
from cosmictagger.data.loader import EventLoader, Order, SyntheticLoader, densify
from cosmictagger.errors import ConfigError, DataError
from cosmictagger.sources import endless

from .data_cases import SIZE, change, random_event, write_random


@pytest.fixture
def path(tmp_path):
    return write_random(tmp_path / "events.h5", 7)


def entries(loader):
    return [batch.entries for batch in loader]


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("cosmictagger-loader")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    if loader_threads():
        gc.collect()  # takes a third of a second, so only where something holds on to one
    assert not loader_threads()


def test_a_batch_holds_dense_events(path):
    with EventLoader(path, batch_size=2, downsample=1) as loader:
        batch = next(iter(loader))
    assert (batch.image.shape, batch.image.dtype) == ((2, 3, 16, 32), torch.float32)
    assert batch.label is not None
    assert (batch.label.shape, batch.label.dtype) == ((2, 3, 16, 32), torch.int64)
    assert batch.entries == [0, 1]
    assert batch.event_ids.tolist() == [[1, 2, 0], [1, 2, 1]]
    for row in range(2):
        planes = random_event(row).planes
        np.testing.assert_array_equal(batch.image[row], densify(planes[IMAGE], SIZE, 1))
        np.testing.assert_array_equal(batch.label[row], densify(planes[LABEL], SIZE, 1, label=True))


def test_the_logarithm_of_the_images(path):
    with EventLoader(path, img_transform=True) as loader, EventLoader(path) as plain:
        torch.testing.assert_close(loader.load([0]).image, torch.log1p(plain.load([0]).image))


def test_files_without_labels(path):
    with EventLoader(EventFile(path, label=None)) as loader:
        assert loader.load([0]).label is None


def test_in_order_every_event_comes_once_and_the_last_batch_is_smaller(path):
    with EventLoader(path, batch_size=3) as loader:
        assert len(loader) == 3
        assert entries(loader) == [[0, 1, 2], [3, 4, 5], [6]]
        assert entries(loader) == [[0, 1, 2], [3, 4, 5], [6]]
        assert loader.epoch == 2


def test_shuffling_visits_every_event_once_per_epoch_in_a_seeded_order(path):
    with EventLoader(path, batch_size=2, shuffle=True, seed=4) as loader:
        epochs = [joined(entries(loader)) for _ in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    with EventLoader(path, batch_size=2, shuffle=True, seed=4) as loader:
        loader.set_epoch(2)
        assert joined(entries(loader)) == epochs[2]
    with EventLoader(path, batch_size=2, shuffle=True, seed=5) as loader:
        assert joined(entries(loader)) != epochs[0]


def test_the_order_of_a_seed_never_changes():
    # Stored positions rely on it; numpy promises the raw bits of PCG64 for all releases.
    assert Order(6, 1, shuffle=True, seed=1).epoch_order(0).tolist() == [2, 4, 5, 0, 3, 1]
    assert Order(6, 1, shuffle=True, seed=1).epoch_order(1).tolist() == [5, 3, 0, 2, 1, 4]


def test_across_epochs_all_batches_are_full_and_every_event_comes_once(path):
    with EventLoader(path, batch_size=3, shuffle=True, across_epochs=True) as loader:
        lengths, results = [], []
        for _ in range(3):
            lengths.append(len(loader))
            results += entries(loader)
    assert lengths == [3, 2, 2]
    assert all(len(batch) == 3 for batch in results)
    stream = joined(results)
    assert [sorted(stream[k : k + 7]) for k in (0, 7, 14)] == [list(range(7))] * 3


@pytest.mark.parametrize(("instances", "batch_size"), [(1, 4), (2, 2), (4, 1)])
def test_instances_share_the_batches_of_one(path, instances, batch_size):
    def steps(shard, size):
        order = {"shuffle": True, "seed": 3, "across_epochs": True}
        with EventLoader(path, batch_size=size, shard=shard, **order) as loader:
            return entries(loader) + entries(loader)

    shared = [steps((index, instances), batch_size) for index in range(instances)]
    together = [joined(pieces) for pieces in zip(*shared, strict=True)]
    assert together == steps((0, 1), 4)


def test_instances_in_inference_get_every_event_once(path):
    batches = []
    for index in range(2):
        with EventLoader(path, batch_size=2, shard=(index, 2)) as loader:
            batches += joined(entries(loader))
            assert len(loader) == 2
    assert sorted(batches) == list(range(7))
    with EventLoader(path, batch_size=2, shard=(3, 4)) as loader:
        assert entries(loader) == [[6]]
    with EventLoader(path, batch_size=2, shard=(4, 5)) as loader:
        assert (len(loader), entries(loader)) == (0, [])


@pytest.mark.parametrize("across", [False, True])
def test_a_stored_position_gives_the_very_same_batches(path, across):
    settings = {"batch_size": 2, "shuffle": True, "across_epochs": across}
    with EventLoader(path, seed=9, **settings) as loader:
        entries(loader)
        for count, _ in enumerate(loader, 1):
            if count == 2:
                break
        state = loader.state_dict()
        rest = [*loader, *loader]
    assert (state["epoch"], state["position"], state["seed"]) == (1, 2, 9)
    with EventLoader(path, seed=0, **settings) as resumed:
        resumed.load_state_dict(state)
        again = [*resumed, *resumed]
    assert [batch.entries for batch in again] == [batch.entries for batch in rest]
    assert all(torch.equal(a.image, b.image) for a, b in zip(again, rest, strict=True))


def test_a_stored_position_at_the_end_of_an_epoch_goes_on_with_the_next(path):
    with EventLoader(path, batch_size=7, shuffle=True) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        assert list(iterator) == []
        following = entries(loader)
    with EventLoader(path, batch_size=7, shuffle=True) as resumed:
        resumed.load_state_dict(state)
        assert entries(resumed) == []
        assert entries(resumed) == following


@pytest.mark.parametrize("sizes", [(4, 3), (3, 4), (2, 6, 1), (5, 2, 3)])
def test_with_other_batch_sizes_each_event_still_comes_once_per_epoch(path, sizes):
    """Of seven events, in whatever batches: after each change the very next event follows."""
    state, seen = None, []
    for size in sizes:
        with EventLoader(path, batch_size=size, shuffle=True, seed=3, across_epochs=True) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = endless(loader)
            for _ in range(5):
                seen += next(batches).entries
            state = loader.state_dict()
    with EventLoader(path, batch_size=1, shuffle=True, seed=3, across_epochs=True) as one:
        batches = endless(one)
        assert seen == [next(batches).entries[0] for _ in seen]


def test_instances_get_as_many_batches_where_they_are_told_to(path):
    batches = []
    for index in range(3):
        with EventLoader(path, batch_size=2, shard=(index, 3), equal=True) as loader:
            batches.append([batch.entries for batch in loader])
            assert loader.load([]).image.shape == (0, 3, *loader.image_size)
    assert batches == [[[0, 1], [6]], [[2, 3], []], [[4, 5], []]]


def test_a_stored_position_of_other_data_is_refused(path):
    with EventLoader(path, batch_size=2) as loader:
        state = loader.state_dict()
        with pytest.raises(DataError, match="events=5, here it is 7"):
            loader.load_state_dict({**state, "events": 5})
        with pytest.raises(DataError, match=r"lacks \['epoch'\]"):
            loader.load_state_dict({name: state[name] for name in state if name != "epoch"})


def test_fewer_events_than_a_batch(path):
    expected = r"takes 8 events \(batch_size 4 x 2 instances\), the file has 7"
    with pytest.raises(ConfigError, match=expected):
        EventLoader(path, batch_size=4, shard=(0, 2), across_epochs=True)
    with EventLoader(path, batch_size=8) as loader:
        assert entries(loader) == [list(range(7))]


def test_an_error_in_the_background_comes_at_its_batch(path):
    with EventFile(path) as file:
        row = int(file._tables[IMAGE].first[4, 1])
    change(path, "Data/sparse2d_sbndwire_group/voxels", row, "value", np.nan)
    batches = []
    with (
        EventLoader(path, batch_size=2) as loader,
        pytest.raises(DataError, match=r"events\.h5: event 4, plane 1 of 'sbndwire' .* nan"),
    ):
        # extend keeps what came before the error.
        batches.extend(batch.entries for batch in loader)
    assert batches == [[0, 1], [2, 3]]
    assert loader.position == 2
    assert not loader_threads()


def test_a_loop_that_is_left_early_leaves_no_thread(path):
    loader = EventLoader(path)
    for _ in loader:
        assert loader_threads()
        break
    assert not loader_threads()
    loader.close()


def test_stopping_and_moving_end_the_thread(path):
    with EventLoader(path) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.set_epoch(3)
        assert not loader_threads()
        assert list(iterator) == []
        assert (loader.epoch, loader.position) == (3, 0)


def test_batches_are_prepared_while_the_caller_works(path, monkeypatch):
    made = []
    real = EventLoader.load

    def load(self, wanted):
        made.append(wanted)
        return real(self, wanted)

    monkeypatch.setattr(EventLoader, "load", load)
    with EventLoader(path) as loader:
        iterator = iter(loader)
        next(iterator)
        deadline = time.monotonic() + 10
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert made == [[0], [1], [2]]
        assert loader.position == 1
        iterator.close()


def test_synthetic_batches_are_random_and_do_not_overlap():
    with SyntheticLoader(batch_size=2, downsample=1, size=(32, 64), seed=3) as loader:
        batches = list(itertools.islice(loader, 2))
        again = loader.load([3])
    assert [batch.entries for batch in batches] == [[0, 1], [2, 3]]
    first, second = batches
    assert (first.image.shape, first.image.dtype) == ((2, 3, 16, 32), torch.float32)
    assert first.label is not None
    assert second.label is not None
    assert first.label.dtype == torch.int64
    assert 0 <= float(first.image.min()) < 0.01 < 0.99 < float(first.image.max()) < 1
    shares = np.bincount(first.label.ravel()) / first.label.numel()
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)
    images = [*first.image, *second.image]
    assert not any(torch.equal(images[i], images[j]) for i in range(4) for j in range(i))
    assert torch.equal(again.image[0], second.image[1])
    assert torch.equal(again.label[0], second.label[1])


def test_synthetic_data_holds_no_memory_and_takes_the_logarithm():
    plain, logarithm = (
        SyntheticLoader(size=(32, 64), img_transform=flag) for flag in (False, True)
    )
    assert len(plain) == 1_000_000
    torch.testing.assert_close(logarithm.load([7]).image, torch.log1p(plain.load([7]).image))
