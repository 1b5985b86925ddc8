"""Learning rates and other numbers that a compiled function computes before its tensors."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from helpers.compiled_functions import Task, batch, compiles, stays_eager

RATE, WARM, LAST = 0.01, 3, 8
EPOCH = 0


def get_lr(it):
    if it < WARM:
        return RATE * (it + 1) / (WARM + 1)
    if it > LAST:
        return 0.1 * RATE
    ratio = (it - WARM) / (LAST - WARM)
    assert 0 <= ratio <= 1
    return 0.1 * RATE + 0.5 * (1.0 + math.cos(math.pi * ratio)) * 0.9 * RATE


def adjust(optimizer, epoch, args):
    """Decay the learning rate of each group."""
    lr = args.lr
    lr *= 0.5 * (1.0 + math.cos(math.pi * epoch / args.epochs))
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)


def by_argument(wrap):
    task = Task(torch.optim.AdamW)

    @wrap
    def step(x, y, it):
        lr = get_lr(it)
        for group in task.optimizer.param_groups:
            group["lr"] = lr
        return task.update(task.loss(x, y))

    return lambda i: step(*batch(i), i), lambda: task


test_the_rate_of_a_step_that_is_an_argument = compiles(calls=12)(by_argument)
test_the_rate_on_the_processor = pytest.mark.compiler(compiles(calls=7, target="cpu")(by_argument))


@compiles(programs=1, calls=12)
def test_the_rate_of_a_counter_of_the_object(wrap):
    class Trainer(Task):
        def __init__(self):
            super().__init__(torch.optim.AdamW)
            self.it, self.epochs, self.losses = 0, 20, []

        def rate(self, it):
            return RATE * min(1.0, (it + 1) / WARM) * (1 - it / self.epochs)

        @wrap
        def fit(self, x, y):
            """Train on a batch."""
            self.model.train()
            self.optimizer.zero_grad()
            x = x.to(torch.float32)
            self.it += 1
            lr = self.rate(self.it) if self.it else 0.0
            self.optimizer.param_groups[0]["lr"] = lr
            loss = self.update(self.loss(x, y))
            self.losses.append(loss.item())
            return loss, lr

    trainer = Trainer()
    return lambda i: trainer.fit(*batch(i)), lambda: trainer


@compiles(calls=12)
def test_two_groups_and_a_global_epoch(wrap):
    global EPOCH
    EPOCH = 0
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    groups = [{"params": each.parameters(), "scale": 1 + k} for k, each in enumerate(model)]
    task, args = Task(model=model), SimpleNamespace(lr=0.1, epochs=20)
    task.optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    @wrap
    def step(data):
        global EPOCH
        x, y = data
        EPOCH = EPOCH + 1
        adjust(task.optimizer, EPOCH, args)
        for index, group in enumerate(task.optimizer.param_groups):
            group["weight_decay"] = 0.0 if index else 0.01
        return task.update(task.loss(x, y))

    return lambda i: step(batch(i)), lambda: (task, EPOCH)


@compiles(programs=1, calls=6)
def test_a_rate_by_a_tensor(wrap):
    task = Task()

    @wrap
    def step(x, y):
        task.optimizer.param_groups[0]["lr"] = 0.1 * task.model.weight.abs().max().item()
        return task.update(task.loss(x, y))

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match="changes an object that is read afterwards|changes objects of Python", calls=6)
def test_a_mode_that_the_function_sets_before(wrap):
    task = Task(model=nn.Sequential(nn.Linear(5, 3)))

    @wrap
    def step(x, y):
        task.model.train()
        lr = 0.1 if task.model.training else 0.2
        task.optimizer.param_groups[0]["lr"] = lr * len(task.model.weights)
        task.model.weights.append(0)
        return task.update(task.loss(x, y))

    def call(i):
        task.model.eval()
        return step(*batch(i))

    task.model.weights = [0]
    return call, lambda: task


@compiles(programs=2, calls=8)
def test_a_counter_beside_a_sum_decides_whether_an_update_runs(wrap):
    task, totals = Task(torch.optim.Adam), {"loss": 0.0, "batches": 0}
    scheduler = torch.optim.lr_scheduler.StepLR(task.optimizer, 2)

    @wrap
    def step(x, y):
        loss = task.loss(x, y)
        (loss / 2).backward()
        totals["loss"] += loss.item()
        totals["batches"] += 1
        if totals["batches"] % 2 == 0:
            task.optimizer.step()
            scheduler.step()
            task.optimizer.zero_grad()
        return loss.detach()

    return lambda i: step(*batch(i)), lambda: (task, totals, scheduler.last_epoch)


@compiles(programs=3, calls=9)
def test_losses_in_a_dictionary_by_names_in_an_argument(wrap):
    task, history = Task(), {"class": [], "norm": []}

    @wrap
    def step(x, y, active):
        losses, scores = {}, task.model(x)
        if "class" in active:
            losses["class"] = F.cross_entropy(scores, y)
        if "norm" in active:
            losses["norm"] = scores.square().mean()
        loss = task.update(sum(losses.values()))
        for name, each in losses.items():
            history[name].append(round(each.item(), 3))
        return loss

    names = [("class", "norm"), ("class",), ("norm",)]
    return lambda i: step(*batch(i), names[i % 3]), lambda: (task, history)


@compiles(programs=3, calls=9)
def test_a_rate_and_a_log_by_the_number_of_the_call(wrap):
    task, logged = Task(), []

    @wrap
    def step(x, y, it):
        loss = task.update(task.loss(x, y))
        task.optimizer.param_groups[0]["lr"] = 0.1 * 0.5 ** (it / 10)
        if it % 2 == 0:
            logged.append(loss.item())
        return loss

    return lambda i: step(*batch(i), i), lambda: (task, logged)


@compiles(programs=1, calls=9)
def test_rates_of_several_schedulers_are_returned(wrap):
    task, other = Task(), Task(torch.optim.Adam)
    optimizers = [task.optimizer, other.optimizer]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]

    @wrap
    def step(x, y):
        loss = other.update(task.update(task.loss(x, y)).detach() * other.loss(x, y))
        for each in schedulers:
            each.step()
        return loss, [each.get_last_lr()[0] for each in schedulers]

    return lambda i: step(*batch(i)), lambda: (task, other)


@compiles(programs=4, calls=9)
def test_a_rate_that_is_set_behind_a_method_which_no_first_call_runs(wrap):
    class Accumulating(Task):
        batches = 0

        def apply(self):
            self.optimizer.step()
            self.optimizer.zero_grad()

        def update(self, loss):
            loss.backward()
            if self.batches % 3 == 2:
                self.apply()
            return loss.detach()

    task = Accumulating()

    @wrap
    def step(x, y, it):
        loss = task.update(task.loss(x, y))
        task.optimizer.param_groups[0]["lr"] = 0.1 * 0.5**it
        return loss

    def call(i):
        task.batches = i
        return step(*batch(i), i)

    return call, lambda: task
