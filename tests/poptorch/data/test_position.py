"""A loader's position: another loader, made alike, gives the rest."""

import itertools

import pytest
import torch

import poptorch
from helpers import datasets as data

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
Mode = poptorch.DataLoaderMode
FORK = {"async_options": {"sharing_strategy": poptorch.SharingStrategy.Fork}}


def load(size=14, process=0, processes=1, seed=None, form="tensor", batch_size=4, **settings):
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(process, processes)
    if seed is not None:
        opts.randomSeed(seed)
    dataset = settings.pop("dataset", None) or data.Range(size, form)
    return poptorch.DataLoader(opts, dataset, batch_size, **FORK, **settings)


def given(iterator, count=None):
    return [batch.tolist() for batch in itertools.islice(iterator, count)]


CASES = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "a short batch at the end": {"shuffle": True, "drop_last": False},
    "workers": {"shuffle": True, "num_workers": 2},
    "a share of the data": {"shuffle": True, "process": 1, "processes": 2, "size": 28, "seed": 5},
    "a process ahead": {"shuffle": True, "mode": Mode.Async},
    "pieces": {"shuffle": True, "mode": Mode.AsyncRebatched, "rebatched_worker_size": 3},
    "pieces and a rest": {"mode": Mode.Async, "drop_last": False, "rebatched_worker_size": 3},
    "a stream": {"dataset": data.Stream(14)},
}


@pytest.mark.parametrize("case", CASES)
def test_another_loader_gives_the_rest_and_the_epochs_that_follow(case):
    first, second = load(**CASES[case]), load(**CASES[case])
    given(first)
    iterator = iter(first)
    given(iterator, 2)
    state, outside = first.state_dict(), torch.get_rng_state()
    rest = given(iterator)
    finished, behind = first.state_dict(), torch.get_rng_state()
    following = given(first)
    torch.set_rng_state(outside)
    second.load_state_dict(state)
    assert given(second) == rest
    assert torch.equal(torch.get_rng_state(), behind)
    assert given(second) == following
    torch.set_rng_state(behind)
    second.load_state_dict(finished)
    assert given(second) == following
    for loader in (first, second):
        loader.terminate()


def test_at_the_end_of_an_epoch_nothing_is_left_of_it():
    first, second = load(), load()
    given(iter(first), 3)
    state = first.state_dict()
    assert (state["begun"], state["given"], state["running"]) == (1, 3, True)
    second.load_state_dict(state)
    assert given(second) == []
    assert len(given(second)) == 3


def test_only_the_newest_iterator_counts():
    loader = load()
    old = iter(loader)
    given(old, 1)
    new = iter(loader)
    given(new, 2)
    given(old)
    assert loader.state_dict()["given"] == 2
    assert len(new) == 3


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": 2}, "combined batch 4 there, 2 here"),
        ({"size": 15}, "rows of data 14 there, 15 here"),
        ({"shuffle": True}, "sampler SequentialSampler there, RandomSampler here"),
        ({"processes": 2, "size": 28}, "processes 1 there, 2 here"),
        ({"mode": Mode.Async}, "read ahead by a process False there, True here"),
    ],
)
def test_the_position_of_another_loader_is_refused(settings, text):
    other = load(**settings)
    with pytest.raises(poptorch.Error, match=text):
        other.load_state_dict(load().state_dict())
    other.terminate()


def test_a_position_is_plain(tmp_path):
    loader = load(shuffle=True)
    given(iter(loader), 1)
    torch.save(loader.state_dict(), tmp_path / "position.pt")
    other = load(shuffle=True)
    other.load_state_dict(torch.load(tmp_path / "position.pt", weights_only=True))
    assert len(given(other)) == 2
