"""The loader in all modes: sizes, errors, warnings, partitions."""

import itertools
import logging
import os
import subprocess
import tempfile

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

import poptorch
from helpers import datasets as data
from helpers.warm_python import python
from poptorch._data.dataloader import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
Mode = poptorch.DataLoaderMode
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}


def options(iterations=1, accumulation=1, replicas=1, process=0, processes=1, seed=None):
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    opts.Distributed.configureProcessId(process, processes)
    return opts if seed is None else opts.randomSeed(seed)


def load(opts, dataset, *args, **kwargs):
    kwargs.setdefault("async_options", FORK)
    return DataLoader(opts, dataset, *args, **kwargs)


def rows(loader):
    """The numbers in each batch of one epoch."""
    return [(b[1] if isinstance(b, list) else b).tolist() for b in loader]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


# Sizes and attributes


@pytest.mark.parametrize(
    ("factors", "combined"),
    [((1, 1, 1), 2), ((3, 1, 1), 6), ((1, 4, 1), 8), ((1, 1, 5), 10), ((2, 3, 2), 24)],
)
def test_combined_batch_size(factors, combined):
    loader = load(options(*factors), data.Range(50), batch_size=2)
    assert loader.combinedBatchSize == loader._combined_batch_size == combined
    assert len(loader) == 50 // combined == len(list(loader))
    assert all(len(y) == combined for _, y in loader)


def test_input_groups_share_rows():
    opts = options(replicas=4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert load(opts, data.Range(8), batch_size=3).combinedBatchSize == 6


def test_the_options_are_frozen():
    opts = options()
    loader = load(opts, data.Range(4))
    assert loader.options is opts
    with pytest.raises(AttributeError, match="frozen"):
        opts.deviceIterations(2)


def test_defaults_of_torch_arguments():
    loader = load(options(), data.Range(5), batch_size=2, num_workers=1)
    assert loader.drop_last
    assert loader.persistent_workers
    assert rows(loader) == rows(loader) == [[0, 1], [2, 3]]
    loader.terminate()
    assert not load(options(), data.Range(5)).persistent_workers


def test_without_batching_the_dataset_gives_whole_batches():
    loader = load(options(2), data.Range(3, "tensor"), batch_size=None)
    assert loader.combinedBatchSize is None
    assert [int(element) for element in loader] == [0, 1, 2]


# Batch samplers


def micro_batches(size, number, drop_last=False):
    return BatchSampler(SequentialSampler(range(number)), size, drop_last)


@pytest.mark.parametrize(
    ("drop_last", "expected"), [(True, [[0, 1, 2, 3]]), (False, [[0, 1, 2, 3], [4, 5]])]
)
@pytest.mark.parametrize("mode", [Mode.Sync, Mode.Async, Mode.AsyncRebatched])
def test_micro_batches_are_grouped(mode, drop_last, expected):
    loader = load(
        options(2), data.Range(6), batch_sampler=micro_batches(2, 6), drop_last=drop_last, mode=mode
    )
    assert loader.combinedBatchSize == 4
    assert len(loader) == len(expected)
    assert rows(loader) == expected
    loader.terminate()


def count_within(micro_batch):
    """Collate to the positions within a micro-batch, which joining first would lose."""
    return {"at": torch.arange(len(micro_batch)), "named": data.Named(torch.ones(1), "label")}


def test_micro_batches_are_collated_one_by_one():
    sampler = [[0, 1], [2, 3]]
    loader = load(options(2), data.Range(4), batch_sampler=sampler, collate_fn=count_within)
    assert loader.combinedBatchSize is None
    (batch,) = loader
    assert batch["at"].tolist() == [0, 1, 0, 1]
    assert batch["named"].x.shape == (2,)
    assert batch["named"].y == "label"


@pytest.mark.parametrize(
    ("collate", "words"),
    [
        (lambda items: len(items), r"batch has the values \[2, 1\]"),
        (lambda items: [torch.ones(1)] * len(items), r"batch has the lengths \[2, 1\]"),
        (lambda items: {str(len(items)): 0}, "batch has the keys"),
        (lambda items: [[0, 0.0][len(items) - 1]], r"batch\[0\] has the types"),
    ],
)
def test_micro_batches_of_different_structure(collate, words):
    loader = load(options(2), data.Range(3), batch_sampler=[[0, 1], [2]], collate_fn=collate)
    with pytest.raises(poptorch.Error, match=words):
        list(loader)


def test_micro_batches_of_a_custom_type(monkeypatch):
    monkeypatch.setattr("poptorch._forward.structure._parsers", {data.Pair: data.PairParser()})

    def collate(items):
        xs, ys = zip(*items, strict=True)
        return data.Pair(torch.stack(xs), torch.stack(ys), "note")

    loader = load(options(2), data.Range(4), batch_sampler=[[0, 1], [2, 3]], collate_fn=collate)
    (pair,) = loader
    assert (pair.y.tolist(), pair.note) == ([0, 1, 2, 3], "note")


# Several processes


@pytest.mark.parametrize("mode", [Mode.Sync, Mode.Async])
@pytest.mark.parametrize("shuffle", [False, True])
def test_processes_share_a_dataset(shuffle, mode):
    loaders = [
        load(options(2, 1, 1, p, 3, seed=1), data.Range(26), 2, shuffle=shuffle, mode=mode)
        for p in range(3)
    ]
    assert [len(loader) for loader in loaders] == [2, 2, 2]
    epochs = [flat(flat(rows(loader)) for loader in loaders) for _ in range(2)]
    assert all(len(set(numbers)) == 24 for numbers in epochs)
    assert set(epochs[0]) | set(epochs[1]) == set(range(26)) or shuffle
    assert epochs[0] != epochs[1]
    for loader in loaders:
        loader.terminate()


# Modes


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("drop_last", "expected"), [(True, [[0, 1, 2, 3]]), (False, [[0, 1, 2, 3], [4, 5]])]
)
def test_modes_give_the_same_batches(mode, drop_last, expected):
    loader = load(options(2), data.Range(6), 2, drop_last=drop_last, mode=mode)
    assert len(loader) == len(expected)
    assert rows(loader) == rows(loader) == expected
    loader.terminate()


@pytest.mark.parametrize(
    ("drop_last", "sizes"), [(True, [10, 10]), (False, [10, 10, 3])], ids=["drop", "keep"]
)
def test_rebatching_merges_what_workers_have_left(drop_last, sizes):
    loader = load(
        options(),
        data.Stream(23),
        10,
        num_workers=4,
        drop_last=drop_last,
        mode=Mode.AsyncRebatched,
        rebatched_worker_size=4,
        worker_init_fn=print_nothing,
    )
    batches = rows(loader)
    loader.terminate()
    assert len(loader) == len(sizes)
    assert [len(batch) for batch in batches] == sizes
    assert len(set(flat(batches))) == sum(sizes)


def print_nothing(worker):
    del worker


def test_a_terminated_loader_says_so():
    loader = load(options(), data.Range(4), mode=Mode.Async)
    loader.terminate()
    loader.terminate()
    with pytest.raises(poptorch.Error, match="was terminated"):
        next(iter(loader))


# Mistakes

SAMPLER = [[0, 1]]


@pytest.mark.parametrize(
    ("kind", "words", "processes", "dataset", "kwargs"),
    [
        (poptorch.Error, "mutually exclusive", 1, data.Range(4),
         {"batch_sampler": SAMPLER, "rebatched_worker_size": 2}),
        (poptorch.Error, "sampler and auto_distributed_partitioning are mutually exclusive",
         2, data.Range(4), {"sampler": [0]}),
        (AssertionError, "batch_size=None cannot be partitioned", 2, data.Range(4),
         {"batch_size": None}),
        (AssertionError, "needs to know the combined batch size", 1, data.Range(4),
         {"batch_size": None, "mode": Mode.AsyncRebatched}),
        (ValueError, "not a valid DataLoaderMode", 1, data.Range(4), {"mode": 3}),
    ],
)  # fmt: skip
def test_mistakes(kind, words, processes, dataset, kwargs):
    with pytest.raises(kind, match=words):
        load(options(processes=processes), dataset, **kwargs)


def test_the_first_argument_must_be_options():
    with pytest.raises(AssertionError, match=r"must be poptorch\.Options"):
        DataLoader(data.Range(4), 2)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_dataset_smaller_than_one_batch_is_never_silent(mode, caplog):
    loader = load(options(4, 2), data.Range(5), 2, mode=mode)
    assert len(loader) == 0
    (record,) = caplog.records
    words = (
        "there are 5 elements, one combined batch takes 16 = batch_size 2 x deviceIterations 4 x "
        "gradientAccumulation 2 x replicas 1 and drop_last=True drops the rest"
    )
    assert words in record.message
    with pytest.raises(poptorch.Error, match=words):
        iter(loader)


@pytest.mark.parametrize(
    ("opts", "dataset", "kwargs", "words"),
    [
        (options(2, processes=3), data.Range(5), {}, "5 elements.* 6 = .* x processes 3 and"),
        (options(3), data.Range(5), {"batch_sampler": SAMPLER}, "1 micro-batches.* 3 = device"),
        (options(), data.Range(0), {"drop_last": False}, "0 elements.* replicas 1. Use more"),
        (options(), data.Stream(2), {"batch_size": 3}, "2 elements"),
        (options(), data.Stream(2), {"batch_size": None, "sampler": None}, ""),
    ],
)
def test_an_epoch_without_a_batch_is_an_error(opts, dataset, kwargs, words):
    loader = load(opts, dataset, **kwargs)
    if not words:
        assert len(list(loader)) == 2
        return
    with pytest.raises(poptorch.Error, match=words):
        list(loader)


# Warnings


@pytest.mark.parametrize(
    ("dataset", "kwargs", "words"),
    [
        (data.Range(7), {"drop_last": False}, "7 elements are not divisible by 4"),
        (data.Range(8), {"drop_last": False}, None),
        (data.Range(7), {}, None),
        (data.Range(9), {"drop_last": False, "batch_size": 1, "batch_sampler": SAMPLER * 3},
         "3 micro-batches are not divisible by 2"),
        (data.Range(9), {"drop_last": False, "batch_size": 1, "batch_sampler": iter(SAMPLER)},
         "The length of the data is not known"),
        (data.Stream(8), {"num_workers": 2}, "will be repeated by each of the 2 workers"),
        (data.Stream(8), {"num_workers": 2, "worker_init_fn": print_nothing}, None),
        (data.Stream(8), {"num_workers": 1}, None),
    ],
)  # fmt: skip
def test_warnings(dataset, kwargs, words, caplog):
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        load(options(2), dataset, **{"batch_size": 2, **kwargs})
    messages = [record.message for record in caplog.records]
    assert len(messages) == (words is not None)
    assert words is None or words in messages[0]


_KEEPS_WORKERS = """
import sys
import torch
import poptorch
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((2,), float(index))
if __name__ == "__main__":
    loaders = [
        poptorch.DataLoader(
            poptorch.Options(), Numbers(), batch_size=2, num_workers=1, mode=mode,
            async_options={"sharing_strategy": poptorch.SharingStrategy.Fork},
        )
        for mode in (poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async)
    ]
    for loader in loaders:
        next(iter(loader))
    sys.exit(3)
"""


def test_workers_that_are_kept_leave_no_files(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(_KEEPS_WORKERS, encoding="utf-8")
    # Not in tmp_path: paths of sockets, which torch puts there, have at most 107 characters.
    with tempfile.TemporaryDirectory() as temporary:
        variables = {**os.environ, "TMPDIR": temporary}
        command = [python(), script]
        done = subprocess.run(command, env=variables, check=False, timeout=120)
        assert done.returncode == 3
        assert os.listdir(temporary) == []
