"""Batches of data sets in memory have the bits of single items; others are made of these."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler, Subset, TensorDataset

import poptorch
from helpers import torchvision_like as tv
from poptorch._data.whole_batches import why_single

ROWS, COMPARED = 50, 8


def random_bytes(*shape):
    return torch.from_numpy(np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8))


def labels():
    return torch.arange(ROWS) % 10


def mnist(transform, **settings):
    return tv.MNIST(random_bytes(ROWS, 9, 7), labels(), transform, **settings)


def cifar(transform):
    return tv.CIFAR10(random_bytes(ROWS, 8, 6, 3).numpy(), labels().tolist(), transform)


class Indexing(Dataset):
    """Items are rows of its tensors, as in many programs."""

    def __init__(self, images=None):
        self.images = torch.randn(ROWS, 1, 4, 4) if images is None else images
        self.labels = labels()

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        """What a program says here does not matter."""
        return self.images[index], self.labels[index]


class OneTensor(Indexing):
    def __getitem__(self, i):
        return self.images[i]


class TupleOfOne(Indexing):
    def __getitem__(self, i):
        return (self.images[i],)


class Scaled(Indexing):
    def __getitem__(self, index):
        return self.images[index] * 2, self.labels[index]


class NextRow(Indexing):
    def __getitem__(self, index):
        return self.images[index], self.labels[index - 1]


class Several(Indexing):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Computed(Dataset):
    labels = property(lambda self: labels())

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return self.labels[index]


TRANSFORMS = {
    "ToTensor": lambda channels: tv.ToTensor(),
    "Normalize": lambda channels: tv.Compose(
        [tv.ToTensor(), tv.Normalize((0.1307,) * channels, [0.3081, 0.2, 0.7][:channels])]
    ),
}
KNOWN = {
    "TensorDataset": lambda: TensorDataset(torch.randn(ROWS, 3).t().contiguous().t(), labels()),
    "Indexing": Indexing,
    "OneTensor": OneTensor,
    "TupleOfOne": TupleOfOne,
    "Subset": lambda: Subset(Indexing(), list(range(40, 2, -1))),
    "Subset of a tensor": lambda: Subset(Indexing(), cast("Any", torch.arange(3, 30))),
    **{f"MNIST, {name}": lambda make=make: mnist(make(1)) for name, make in TRANSFORMS.items()},
    **{f"CIFAR10, {name}": lambda make=make: cifar(make(3)) for name, make in TRANSFORMS.items()},
    "Subset of MNIST": lambda: Subset(mnist(tv.ToTensor()), [5, 4, 9, 9, 12, 1, 0, 3]),
}
UNKNOWN = {
    "Scaled.__getitem__ does more": Scaled,
    "NextRow.__getitem__ does more": NextRow,
    "Several.__getitem__ does more": Several,
    "Computed.labels is not a plain attribute": Computed,
    "list.__getitem__ does more": lambda: [torch.ones(1)] * ROWS,
    "RandomInvert is not known": lambda: mnist(tv.Compose([tv.ToTensor(), tv.RandomInvert()])),
    "transform NoneType": lambda: mnist(None),
    "target_transform": lambda: mnist(tv.ToTensor(), target_transform=float),
    "gives other bits": lambda: mnist(tv.Compose([tv.ToTensor(), tv.Normalize([0.1], [0.0])])),
    "plain tensors": lambda: TensorDataset(torch.ones(ROWS, 2, requires_grad=True)),
    "transform ToTensor is not": lambda: mnist(tv.Compose([tv.ToTensor(), tv.ToTensor()])),
    "transform Normalize is not": lambda: mnist(tv.Normalize([0.1], [0.2])),
    "than a list of numbers": lambda: mnist(
        tv.Compose([tv.ToTensor(), tv.Normalize(torch.ones(1), torch.ones(1))])
    ),
}


def epochs(kind, dataset, **settings):
    """Two epochs, shuffled, and the random numbers after them."""
    torch.manual_seed(7)
    loader = kind(dataset, batch_size=4, shuffle=True, drop_last=True, **settings)
    return [batch for _ in range(2) for batch in loader], torch.rand(3)


def of_poptorch(dataset, **settings):
    return poptorch.DataLoader(poptorch.Options(), dataset, **settings)


def require_equal(some, others):
    assert type(some) is type(others)
    if isinstance(some, list):
        assert len(some) == len(others)
        for one, other in zip(some, others, strict=True):
            require_equal(one, other)
        return
    assert (some.dtype, some.stride()) == (others.dtype, others.stride())
    assert torch.equal(some, others)


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_whole_batches_have_the_bits_of_single_items(make):
    dataset = make()
    assert why_single(dataset, torch.utils.data.default_collate) is None
    expected, random_numbers = epochs(torch.utils.data.DataLoader, dataset)
    batches, random_after = epochs(of_poptorch, dataset)
    require_equal(batches, expected)
    assert torch.equal(random_after, random_numbers)


SAMPLERS = {
    "in order": lambda data: {},
    "shuffled": lambda data: {"shuffle": True},
    "a generator": lambda data: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "fewer": lambda data: {"sampler": RandomSampler(data, num_samples=11)},
    "with replacement": lambda data: {"sampler": RandomSampler(data, replacement=True)},
    "of the program's": lambda data: {"sampler": [3, 1, 2, 8, 5]},
}


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers_give_the_order_that_torch_gives_and_draw_what_it_draws(make, drop_last):
    results = []
    for kind in (torch.utils.data.DataLoader, of_poptorch):
        dataset = Indexing(torch.arange(ROWS).view(-1, 1))
        settings = make(dataset)
        torch.manual_seed(7)
        loader = kind(dataset, batch_size=4, drop_last=drop_last, **settings)
        batches = [batch for _ in range(2) for batch in loader]
        own = settings.get("generator", torch.Generator())
        results.append(([*batches, torch.rand(2), own.get_state()], len(iter(loader))))
    (expected, expected_length), (given, length) = results
    require_equal(given, expected)
    assert length == expected_length


def test_an_epoch_of_whole_batches_goes_on_in_another_loader():
    dataset = Indexing()
    first, second = (of_poptorch(dataset, batch_size=4, shuffle=True) for _ in range(2))
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    second.load_state_dict(first.state_dict())
    require_equal(list(second), list(iterator))


def test_after_a_batch_that_fails_comes_the_next_one():
    batches = iter(of_poptorch(Indexing(), batch_size=2, sampler=[0, 1, ROWS, 2, 3, 4]))
    assert next(batches)[1].tolist() == [0, 1]
    with pytest.raises(IndexError, match="out of bounds"):
        next(batches)
    assert next(batches)[1].tolist() == [3, 4]
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(("words", "make"), UNKNOWN.items(), ids=UNKNOWN)
def test_items_of_other_data_sets_are_fetched_one_by_one(words, make):
    assert words in (why_single(make(), torch.utils.data.default_collate) or "")


def test_a_collate_function_of_the_programs_sees_single_items():
    loader = of_poptorch(Indexing(), batch_size=4, collate_fn=len)
    assert set(loader) == {4}
    assert "collate function of its own" in (loader._waiting.why_single or "")


def test_only_a_few_items_are_fetched_one_by_one():
    dataset = mnist(tv.ToTensor())
    loader = of_poptorch(dataset, batch_size=4)
    assert len(list(loader)) == ROWS // 4
    assert dataset.fetched == COMPARED
    assert loader.dataset is dataset
    assert loader.collate_fn is torch.utils.data.default_collate


def test_batches_are_new_memory():
    dataset = Indexing()
    before = dataset.images.clone()
    for images, _ in of_poptorch(dataset, batch_size=4):
        images.zero_()
    assert torch.equal(dataset.images, before)


def test_a_transform_may_be_exchanged_in_the_middle_of_an_epoch():
    dataset = mnist(tv.ToTensor())
    batches = iter(of_poptorch(dataset, batch_size=4))
    next(batches)
    dataset.transform = lambda picture: picture.to_tensor() + 1.0
    images, _ = next(batches)
    assert torch.equal(images[:, 0], dataset.data[4:8] + 1.0)
    dataset.transform = tv.ToTensor()
    images, _ = next(batches)
    assert torch.equal(images[:, 0], dataset.data[8:12] / 255)


def test_an_error_of_an_item_comes_where_it_belongs():
    dataset = mnist(tv.Compose([tv.ToTensor(), tv.Normalize([0.1], [0.0])]))
    with pytest.raises(ValueError, match="std evaluated to zero"):
        list(of_poptorch(dataset, batch_size=4))


def test_batches_are_pinned_where_there_is_a_device(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 100)
    loader = of_poptorch(Indexing(), batch_size=4, pin_memory=True)
    assert next(iter(loader))[1].tolist() == [100, 101, 102, 103]


@pytest.mark.usefixtures("_spawns")
def test_micro_batches_of_a_sampler_and_the_process_that_reads_ahead():
    dataset = Indexing()
    pairs = [[0, 1], [7, 5], [2, 2], [9, 8]]
    options = poptorch.Options().deviceIterations(2)
    loader = poptorch.DataLoader(options, dataset, batch_sampler=pairs)
    assert [batch[1].tolist() for batch in loader] == [[0, 1, 7, 5], [2, 2, 9, 8]]
    ahead = of_poptorch(dataset, batch_size=10, mode=poptorch.DataLoaderMode.Async)
    require_equal(list(ahead), list(of_poptorch(dataset, batch_size=10)))
    ahead.terminate()


def test_indices_from_the_end_and_beyond_it():
    loader = of_poptorch(Indexing(), batch_size=2, sampler=[-1, 3])
    ((_, chosen),) = loader
    assert chosen.tolist() == [9, 3]
    beyond = of_poptorch(Indexing(), batch_size=2, sampler=[0, ROWS])
    with pytest.raises(IndexError, match="out of bounds"):
        list(beyond)
