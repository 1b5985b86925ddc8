"""Batches that are objects: dataclasses, named tuples, and classes of users."""

import collections
import dataclasses
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.compiled_functions import Task, batch, compiles, stays_eager


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    weight: float = 1.0

    @property
    def size(self):
        return len(self.y)

    def to(self, *args):
        return dataclasses.replace(self, x=self.x.to(*args))


class Named(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Slotted:
    __slots__ = ("extra", "x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


class Encoding(collections.UserDict):
    """As tokenizers return it."""

    def __getattr__(self, name):
        if name not in self.data:
            raise AttributeError(name)
        return self.data[name]


class Graph:
    """Nodes and edges, with another object of tensors."""

    def __init__(self, x, y):
        self.x, self.y, self.nested = x, y, {"index": [SimpleNamespace(first=torch.arange(len(x)))]}


def trained_on(wrap, make):
    """A case of a step on a batch of its own kind."""
    task, sizes = Task(torch.optim.Adam), []

    @wrap
    def step(data, scale=1.0):
        loss = task.update(F.cross_entropy(task.model(data.x), data.y) * scale)
        sizes.append(len(data.y))
        return loss

    return lambda i: step(make(*batch(i, rows=4 if i < 4 else 3))), lambda: (task, sizes)


@pytest.mark.parametrize("kind", [Named, SimpleNamespace, Slotted, Encoding])
def test_an_object_of_a_class(kind):
    compiles(programs=2, calls=6)(lambda wrap: trained_on(wrap, lambda x, y: kind(x=x, y=y)))()


@compiles(programs=1)
def test_a_dataclass_that_is_moved_and_returned(wrap):
    task = Task()

    @wrap
    def step(data):
        moved = data.to(torch.float32)
        loss = task.update(task.loss(moved.x, moved.y) * data.weight)
        return loss, data, loss.item() * data.size

    def call(i):
        data = Batch(*batch(i))
        loss, same, number = step(data)
        return loss, same is data, number

    return call, lambda: task


@compiles(programs=1)
def test_objects_in_a_list_of_a_batch(wrap):
    task = Task()

    @wrap
    def step(graphs):
        parts = [task.model(each.x)[each.nested["index"][0].first] for each in graphs]
        return task.update(F.cross_entropy(torch.cat(parts), torch.cat([g.y for g in graphs])))

    return lambda i: step([Graph(*batch(i)), Graph(*batch(i + 9))]), lambda: task


@compiles(programs=2)
def test_a_number_of_a_batch_is_a_slot(wrap):
    task = Task()

    @wrap
    def step(data):
        return task.update(task.loss(data.x, data.y) * data.weight)

    return lambda i: step(Batch(*batch(i), weight=1 / (i + 1))), lambda: task


@compiles(programs=1)
def test_an_object_that_stays_keeps_its_tensors(wrap):
    task, state = Task(), SimpleNamespace(mean=torch.zeros(()), last=None)

    @wrap
    def step(state, x, y):
        loss = task.update(task.loss(x, y))
        with torch.no_grad():
            state.mean.lerp_(loss, 0.1)
        state.last = loss.detach()
        return loss

    return lambda i: step(state, *batch(i)), lambda: (task, state)


@stays_eager(match="that it was given, or a batch")
def test_a_result_is_put_into_the_batch(wrap):
    task = Task()

    @wrap
    def step(data):
        loss = task.update(task.loss(data.x, data.y))
        data.loss = loss.detach()
        return loss

    def call(i):
        data = SimpleNamespace(**dict(zip("xy", batch(i), strict=True)))
        return step(data), data

    return call, lambda: task


@dataclasses.dataclass
class Metrics:
    loss: float | torch.Tensor
    correct: float | torch.Tensor = 0.0
    more: dict = dataclasses.field(default_factory=dict)

    def add(self, loss, correct):
        self.loss += loss
        self.correct += correct


class Store(dict):
    pass


KEPT: list = []
TOTAL = Metrics(0.0)
METRICS = {
    "numbers": lambda loss, right: Metrics(loss.item(), right.sum().item(), {"n": [len(right)]}),
    "tensors": lambda loss, right: Metrics(loss.detach(), right, {"all": [right.float()]}),
    "nested": lambda loss, right: [SimpleNamespace(a=Metrics(loss.item()), b=right.tolist())],
    "dictionary": lambda loss, right: (
        TOTAL.add(loss.item(), right.sum().item()),
        dataclasses.asdict(TOTAL),
    ),
    "one object twice": lambda loss, right: [made := Metrics(loss.detach()), made],
    "a list of outside": lambda loss, right: Metrics(loss.detach(), more=KEPT),
    "a dictionary of its own class": lambda loss, right: Store(loss=loss.item()),
}
NOT_NEW = {
    "one object twice": "an object with tensors twice",
    "a list of outside": "returns or keeps a Metrics",
    "a dictionary of its own class": "reads the value of a tensor",
}


@pytest.mark.parametrize("name", METRICS)
def test_a_helper_returns_its_metrics_as_an_object(name):
    def build(wrap):
        task, TOTAL.loss, TOTAL.correct = Task(), 0.0, 0.0

        def helper(x, y):
            out = task.model(x)
            return METRICS[name](task.update(F.cross_entropy(out, y)), out.argmax(1) == y)

        @wrap
        def step(x, y):
            return helper(x, y)

        return lambda i: step(*batch(i)), lambda: (task, TOTAL)

    (stays_eager(match=NOT_NEW[name]) if name in NOT_NEW else compiles(programs=1))(build)()
