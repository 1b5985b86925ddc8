"""Data sets and parsers that worker processes can import."""

import os
import signal
from collections import namedtuple

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import poptorch


class Range(Dataset):
    """Element i is the number i in several shapes."""

    def __init__(self, size, form="tuple"):
        self.size, self.form = size, form

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        x = torch.full((2,), float(index))
        y = torch.tensor(index)
        return {"tuple": (x, y), "tensor": y, "dict": {"x": x, "y": y}}[self.form]


class Batches:
    """Iterable of batches of the given sizes, with the numbers 0, 1, ... in them."""

    def __init__(self, *sizes, form="tensor"):
        self.sizes, self.form = sizes, form

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        for numbers in torch.arange(sum(self.sizes)).split(list(self.sizes)):
            pair = {"x": numbers[:, None] * torch.ones(2), "y": numbers}
            custom = Pair(**pair, note=str(int(numbers[0])))
            yield {
                "tensor": numbers,
                "tuple": tuple(pair.values()),
                "dict": pair,
                "custom": custom,
            }[self.form]


class Stream(IterableDataset):
    """Numbers, divided between the workers of a loader."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        info = get_worker_info()
        step, first = (info.num_workers, info.id) if info else (1, 0)
        return iter(torch.arange(first, self.size, step))


class Sequence:
    """The given elements."""

    def __init__(self, *elements):
        self.elements = elements

    def __iter__(self):
        return iter(self.elements)


class Failing:
    """Raises, or kills its own process, at the third element."""

    def __init__(self, kill=False):
        self.kill = kill

    def __iter__(self):
        yield torch.tensor(0)
        yield torch.tensor(1)
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("no such picture")


class Random:
    """Two random numbers per epoch."""

    def __iter__(self):
        return iter(torch.rand(2))


Named = namedtuple("Named", "x y")


class Pair:
    """A custom type: two tensors and a note."""

    def __init__(self, x, y, note):
        self.x, self.y, self.note = x, y, note


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x
        yield struct.y

    def reconstruct(self, original_structure, tensor_iterator):
        return Pair(next(tensor_iterator), next(tensor_iterator), original_structure.note)
