"""Gradients between calls of compiled functions, and what Python does in backward."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import abele
from abele import _torch
from abele.runtime.session import Session
from helpers.compiled_functions import Task, batch, compiles, in_two, stays_eager


@stays_eager(match="reads the value of a tensor")
def test_an_update_that_depends_on_the_size_of_a_gradient(wrap):
    task = Task()

    @wrap
    def update():
        if task.model.bias.grad.abs().sum() > 0.5:
            nn.utils.clip_grad_norm_(task.model.parameters(), 0.01)
        task.optimizer.step()
        task.optimizer.zero_grad()

    def call(i):
        (task.loss(*batch(i)) * (0.01 if i % 2 else 10)).backward()
        update()

    return call, lambda: task


@compiles(programs=2)
def test_zeros_of_gradients_that_a_later_call_does_not_compute(wrap):
    models = nn.Linear(5, 3), nn.Linear(5, 3)
    weights = [each for model in models for each in model.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.1)

    @wrap
    def step(x, y, both):
        optimizer.zero_grad(set_to_none=False)
        scores = models[0](x) + (models[1](x) if both else 0)
        loss = nn.functional.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss

    def call(i):
        if i == 1:
            optimizer.zero_grad()
        return step(*batch(i), i % 4 < 2)

    return call, lambda: (models, optimizer)


class Counted(torch.autograd.Function):
    """Doubles, and counts its gradients."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Counted.calls += 1
        return gradient * 2


@compiles(programs=1)
def test_a_counter_of_a_class_in_backward(wrap):
    task = Task()
    Counted.calls = 0

    @wrap
    def step(x, y):
        return task.update(nn.functional.cross_entropy(Counted.apply(task.model(x)), y))

    return lambda i: step(*batch(i)), lambda: (task, Counted.calls)


def test_gradients_of_before_are_released(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    task = Task()

    @abele.compile(cache=False, strict=True)
    def add_gradients(x, y):
        task.loss(x, y).backward()

    for i in range(3):
        add_gradients(*batch(i))
    gradient = weakref.ref(task.model.weight.grad)
    task.model.zero_grad()
    gc.collect()
    assert gradient() is None
    assert add_gradients.programs


def test_a_step_says_once_that_gradients_do_not_stay(monkeypatch, capsys):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    task = Task()

    @abele.compile(cache=False, strict=True)
    def step(x, y):
        return task.update(task.loss(x, y))

    for i, rows in enumerate((4, 4, 3, 4)):
        step(*batch(i, rows))
    assert len(step.programs) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "keep_gradients" in line]
    assert len(said) == 1
    assert said[0].startswith("abele: step: gradients that the update uses are not written")
    assert all(param.grad is None for param in task.model.parameters())


def test_gradients_that_a_call_drops_are_freed_before_its_first_run_alone(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    task, present, call = Task(), [], Session.call

    def noted(session, *args):
        present.append({param.grad is not None for param in task.model.parameters()})
        return call(session, *args)

    monkeypatch.setattr(Session, "call", noted)
    for reads in (False, True):
        task.loss(*batch(0)).backward()

        @abele.compile(cache=False, strict=True)
        def train(x, y, adds=reads):
            if not adds:
                task.optimizer.zero_grad()
            task.loss(x, y).backward()
            task.optimizer.step()
            task.optimizer.zero_grad()

        train(*batch(0))
        task.loss(*batch(0)).backward()
        train(*batch(1))
    assert present == [{False}, {True}]


class TrainsAnother(nn.Module):
    """Does nothing, but has another thread train another model while it is captured."""

    def __init__(self, other):
        super().__init__()
        self.steps = [lambda: other.update(other.loss(*batch(7)))]

    def forward(self, x):
        if isinstance(x, _torch.FakeTensor):
            thread = threading.Thread(target=self.steps[0])
            thread.start()
            thread.join()
        return x


def test_a_thread_that_trains_during_a_capture_is_left_alone(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    other = Task(momentum=0.9, lr=0.1)
    other.update(other.loss(*batch(6)))
    twin = copy.deepcopy(other)
    task = Task(model=nn.Sequential(TrainsAnother(other), nn.Linear(5, 3)))

    @abele.compile(cache=False, strict=True)
    def step(x, y):
        return task.update(task.loss(x, y))

    for i in range(3):
        step(*batch(i))
    assert len(step.programs) == 1
    twin.update(twin.loss(*batch(7)))
    for mine, theirs in zip(other.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(mine.grad, theirs.grad)


@stays_eager(match="sets requires_grad of an argument")
def test_the_gradient_of_an_argument(wrap):
    task = Task()

    @wrap
    def attacked(x, y):
        x.requires_grad_(True)
        task.loss(x, y).backward()
        return (x + 0.1 * x.grad.sign()).detach()

    def call(i):
        x, y = batch(i)
        return attacked(x, y), x.grad, x.requires_grad

    return call, lambda: task


@stays_eager(match="assigns to the data of a tensor")
def test_averaged_weights_are_put_in_the_place_of_others_and_back(wrap):
    task, average = Task(), torch.nn.Linear(5, 3)

    @wrap
    def evaluated(x, y):
        before = task.model.weight.data
        task.model.weight.data = average.weight.data
        loss = task.loss(x, y).detach()
        task.model.weight.data = before
        return loss

    return lambda i: evaluated(*batch(i)), lambda: (task, average)


@stays_eager(match=r"keeps what was there before\. Keep clone\(\)")
def test_how_far_an_update_by_hand_moves_the_weights(wrap):
    task = Task()

    @wrap
    def step(x, y):
        before = task.model.weight.data
        loss = task.loss(x, y)
        (gradient,) = torch.autograd.grad(loss, [task.model.weight])
        task.model.weight.data = task.model.weight.data - 0.1 * gradient
        return (task.model.weight.data - before).norm()

    return lambda i: step(*batch(i)), lambda: task


@compiles(programs=2, calls=8, keep_gradients=True)
def test_gradients_of_two_heads_are_emptied_in_turn(wrap):
    task = Task(model=nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)]))

    @wrap
    def step(x, y, head):
        return task.update(nn.functional.cross_entropy(task.model[head](x), y))

    def call(i):
        loss = step(*batch(i), i // 2 % 2)
        grads = [each.grad for each in task.model.parameters()]
        for each in grads[:2] if i % 4 < 2 else grads[2:]:
            each.detach_()  # which a view refuses
        return loss, *grads

    return call, lambda: task


@compiles(programs=2, calls=8)
def test_two_heads_get_gradients_in_turn(wrap):
    task = Task(model=nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)]))
    _, update = in_two(task, wrap)

    def call(i):
        x, y = batch(i)
        nn.functional.cross_entropy(task.model[i // 3 % 2](x), y).backward()
        update()

    return call, lambda: task


@compiles(programs=4)
def test_a_weight_leaves_the_memory_that_it_shares(wrap):
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3))
    model[1].weight.data = model[0].weight.data
    task = Task(model=model)
    add, update = in_two(task, wrap)

    def call(i):
        if i == 3:
            model[1].weight.data = model[0].weight.data.clone()
        loss = add(*batch(i))
        update()
        return loss

    return call, lambda: task


@compiles(programs=3, calls=8)
def test_gradients_are_views_of_one_buffer(wrap):
    task, flat = Task(), torch.zeros(18)
    add, _ = in_two(task, wrap)

    def call(i):
        if i in (0, 5):
            task.model.weight.grad, task.model.bias.grad = flat[:15].view(3, 5), flat[15:]
        if i == 3:
            task.model.bias.grad = None
        loss = add(*batch(i))
        task.optimizer.step()
        return loss, flat.clone()

    return call, lambda: task


# -- requires_grad, set by the step ---------------------------------------------------------


def gan(wrap, order, *, at_once):
    """A case of two networks that train in turn, the second one frozen where the first does."""
    nets = nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in nets]

    def train(index, x):
        optimizers[index].zero_grad()
        for param in nets[1].parameters():
            param.requires_grad = index == 1
        fake = nets[0](x)
        loss = nets[1](x).mean() - nets[1](fake.detach()).mean() if index else nets[1](fake).mean()
        loss.backward()
        optimizers[index].step()
        return loss

    generator, discriminator = wrap(lambda x: train(0, x)), wrap(lambda x: train(1, x))
    every = wrap(lambda x: [train(each, x) for each in order])

    def call(i):
        x, _ = batch(i)
        return every(x) if at_once else [(generator, discriminator)[each](x) for each in order]

    grads = lambda: [param.grad for each in nets for param in each.parameters()]  # noqa: E731
    return call, lambda: (nets, optimizers, grads())


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 1, 0)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_network_is_frozen_while_another_one_trains(order, at_once):
    test = compiles(programs=1 if at_once else 2, calls=8, keep_gradients=True)
    test(lambda wrap: gan(wrap, order, at_once=at_once))()


@compiles(programs=2, calls=8)
def test_parameters_are_thawed_that_only_a_penalty_uses(wrap):
    task, other, unused, sparse = Task(), nn.Linear(2, 2), nn.Linear(2, 2), torch.eye(2).to_sparse()

    @wrap
    def step(x, y):
        unused.requires_grad_(True)
        params = [each for each in (*other.parameters(), sparse) if each.requires_grad]
        penalty = sum((each.square().sum() for each in params), torch.zeros(()))
        return task.update(task.loss(x, y) + penalty)

    def call(i):
        unused.requires_grad_(i < 4)
        other.requires_grad_(i > 2).zero_grad()
        return step(*batch(i)), unused.weight.requires_grad

    return call, lambda: task


@compiles(programs=2, calls=8)
def test_a_call_finds_gradients_and_empties_them_twice(wrap):
    task = Task()

    @wrap
    def step(x, y):
        loss = task.loss(x, y)
        loss.backward()
        task.optimizer.step()
        task.optimizer.zero_grad()
        task.model.zero_grad()
        return loss

    def call(i):
        if i % 4 == 3:
            task.loss(*batch(i + 9)).backward()
        return step(*batch(i))

    return call, lambda: task
