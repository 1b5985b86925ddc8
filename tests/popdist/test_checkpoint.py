"""Training that was interrupted and goes on ends with the bits of training that was not."""

import pytest
import torch

import poptorch
from helpers.checkpointed import BATCHES, EPOCHS, Data, Killed, Program, Stream

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
Mode = poptorch.DataLoaderMode
FORK = {"async_options": {"sharing_strategy": poptorch.SharingStrategy.Fork}}
ASYNC = {"mode": Mode.Async, **FORK}


def same(actual, expected):
    assert actual.keys() == expected.keys()
    unlike = [n for n, value in expected.items() if not torch.equal(actual[n], value)]
    assert unlike == []


def undisturbed(tmp_path, **settings):
    program = Program(tmp_path / "whole", **settings, every=1000)
    expected = program.run()
    assert len(program.losses) == EPOCHS * BATCHES
    program.close()
    return expected


def interrupted(folder, stops, settings):
    """Starts, is stopped before each of these steps, and runs to the end."""
    for stop in (*stops, None):
        program = Program(folder, **settings())
        if stop != stops[0]:
            torch.rand(3)  # what a new process finds is not what the old one left
        try:
            return program.run(stop)
        except Killed:
            pass
        finally:
            program.close()
    raise AssertionError


def kinds():
    """What programs differ in; made anew at each start, as a program would."""
    pairs = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(24)), 2, True)
    replicas = {"replicationFactor": 2, "gradientAccumulation": 1}
    return {
        "plain": {},
        "torch's own random numbers": {"seed": None},
        "SGD of torch": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)},
        "replicas": {"options": replicas},
        "random elements": {"data": Data(noise=0.1), "seed": None},
        "a generator": {"loader": {"generator": torch.Generator().manual_seed(8)}},
        "a sampler": {"loader": {"batch_size": 1, "shuffle": None, "batch_sampler": pairs}},
        "a stream": {"data": Stream(), "loader": {"shuffle": None}},
    }


MIDDLE, ENDS = (7,), (6, 13)  # of epochs of six steps; the last is after a start at an end


def rare(*values):
    """What tests of loaders look at too."""
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("kind", "stops"),
    [
        *((kind, MIDDLE) for kind in list(kinds())[:-2]),
        *(rare(kind, MIDDLE) for kind in list(kinds())[-2:]),
        ("plain", ENDS),
        rare("a generator", ENDS),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, kind, stops):
    expected = undisturbed(tmp_path, **kinds()[kind])
    same(interrupted(tmp_path / "cut", stops, lambda: kinds()[kind]), expected)


WORKERS = {
    "workers that are kept": {"num_workers": 2},
    "new workers": {"num_workers": 2, "persistent_workers": False},
    "reading ahead": ASYNC,
    "reading ahead with workers": {"num_workers": 2, **ASYNC},
    "assembled from pieces": {**FORK, "mode": Mode.AsyncRebatched, "rebatched_worker_size": 3},
}


@pytest.mark.parametrize(
    ("kind", "stops"),
    [
        *(rare(kind, MIDDLE) for kind in WORKERS),
        ("workers that are kept", (12,)),
        ("reading ahead", MIDDLE),
    ],
)
def test_the_same_with_processes_that_load(tmp_path, kind, stops):
    settings = {"loader": WORKERS[kind]}
    expected = undisturbed(tmp_path, **settings)
    same(interrupted(tmp_path / "cut", stops, lambda: settings), expected)


REPLAYED = {"new workers": {"num_workers": 2, "persistent_workers": False}, "reading ahead": ASYNC}


@pytest.mark.parametrize("kind", [rare("new workers"), "reading ahead"])
def test_random_numbers_of_processes_that_load_are_drawn_again(tmp_path, kind):
    settings = {"loader": REPLAYED[kind], "data": Data(noise=0.1), "replay": True}
    expected = undisturbed(tmp_path, **settings)
    same(interrupted(tmp_path / "cut", (9,), lambda: settings), expected)
