"""Tensors that calls replace in Python objects: averages, hidden states, SAM; LBFGS's closures."""

import contextlib
import copy
import types

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from helpers.compiled_functions import Task, batch, compiles, stays_eager


class Average:
    """Averages of parameters, as many repositories publish them."""

    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}
        self.backup = {}

    def update(self):
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                new = (1.0 - self.decay) * p.data + self.decay * self.shadow[name]
                self.shadow[name] = new.clone()

    def apply_shadow(self):
        for name, p in self.model.named_parameters():
            self.backup[name] = p.data
            p.data = self.shadow[name]


@compiles(programs=1)
def test_averages_in_a_dictionary(wrap):
    task = Task(torch.optim.Adam)
    average = Average(task.model, 0.9)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        average.update()
        return loss

    kept = []

    def call(i):
        kept.append(average.shadow["weight"])  # stays what it was
        return step(*batch(i))

    return call, lambda: (task, average.shadow, kept)


@pytest.mark.parametrize("where", ["attribute", "item", "variable"])
def test_a_hidden_state_is_kept(where):
    def build(wrap):
        cell = nn.GRUCell(5, 3)
        task = Task(model=cell)
        task.hidden, states, state = torch.zeros(4, 3), [torch.zeros(4, 3)], torch.zeros(4, 3)

        @wrap
        def step(x, y):
            nonlocal state
            hidden = {"attribute": task.hidden, "item": states[0], "variable": state}[where]
            hidden = cell(x, hidden)
            loss = task.update(F.cross_entropy(hidden, y))
            if where == "attribute":
                task.hidden = hidden.detach()
            elif where == "item":
                states[0] = hidden.detach()
            else:
                state = hidden.detach()
            return loss

        return lambda i: step(*batch(i)), lambda: (task, states, state)

    compiles(programs=1)(build)()


@pytest.mark.parametrize("programs", [2, 3])
def test_a_hidden_state_is_detached_where_it_is_read(programs):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.hidden = nn.GRUCell(5, 3), None

        def forward(self, x):
            hidden = torch.zeros(4, 3) if self.hidden is None else self.hidden.detach()
            self.hidden = self.cell(x, hidden)
            return self.hidden

    def build(wrap):
        task = Task(model=Recurrent())

        step = wrap(lambda x, y: task.update(task.loss(x, y)))

        def call(i):
            if i == 4 and programs == 3:
                task.model.hidden = None
            return step(*batch(i)), task.model.hidden.detach().clone()

        return call, lambda: task.model.state_dict()

    compiles(programs=programs)(build)()


@compiles(programs=2)
def test_features_with_a_gradient_function_from_outside(wrap):
    task, before = Task(), nn.Linear(5, 5)

    @wrap
    def step(y):
        return task.update(task.loss(task.features.detach(), y))

    def call(i):
        x, y = batch(i)
        task.features = before(x)
        return step(y)

    return call, lambda: (task, [param.grad for param in before.parameters()])


@pytest.mark.parametrize("catches", [False, True])
def test_a_backward_that_enters_a_graph_from_outside(catches):
    def build(wrap):
        task, outside = Task(), nn.Parameter(torch.randn(5))
        scale = outside.exp()

        @wrap
        def step(x, y):
            loss = task.loss(x * scale, y)
            with contextlib.suppress(RuntimeError if catches else ()):
                loss.backward(retain_graph=True)
            task.optimizer.step()
            return loss

        return lambda i: step(*batch(i)), lambda: (task, outside.grad)

    stays_eager(match="backward enters the gradient function of a tensor from outside")(build)()


@compiles(programs=1)
def test_a_running_mean_of_the_loss(wrap):
    task = Task()
    task.mean = torch.zeros(())

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        task.mean = 0.9 * task.mean + 0.1 * loss.detach()
        return task.mean

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match="held elsewhere")
def test_a_replaced_tensor_that_is_held_elsewhere(wrap):
    task = Task()
    task.first = task.mean = torch.ones(())

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y) * task.first)
        task.mean = 0.9 * task.mean + 0.1 * loss.detach()
        return loss

    def call(i):
        task.first = task.mean
        return step(*batch(i))

    return call, lambda: task


@pytest.mark.parametrize("first", ["average", "weight"])
def test_an_average_shares_the_memory_of_a_weight(first):
    def build(wrap):
        task = Task()
        task.average = task.model.weight.data

        @wrap
        def step(x, y):
            loss = task.update(task.loss(x, y)) if first == "weight" else 0
            task.average = 0.9 * task.average.data + 0.1 * task.model.weight.data
            task.model.weight.data = task.average
            return loss + task.update(task.loss(x, y))

        def call(i):
            if i == 3:
                task.average = task.average.clone()
            return step(*batch(i))

        return call, lambda: task

    stays_eager(match="held elsewhere")(build)()


# -- tensors that other functions replace ------------------------------------------------------


def reading(wrap, change=lambda task, i: None, written=lambda task, i: torch.zeros(3)):
    """A case of training that replaces tensors, and of an evaluation that reads them."""
    task, mean = Task(), torch.zeros(3)
    model, task.other = task.model, torch.ones(3)
    model.register_buffer("queue", torch.randn(8, 3))
    model.center, model.ema, model.pair = mean, {"a": torch.zeros(3)}, (mean, torch.ones(3))

    @wrap
    def step(x, y):
        nonlocal mean
        out = model(x)
        loss = task.update(F.cross_entropy(out @ model.queue.t() @ model.queue + mean, y))
        mean = 0.9 * mean + 0.1 * out.detach().mean(0)
        model.queue = torch.cat([out.detach(), model.queue[:-4]])
        model.ema["a"] = model.ema["a"] + out.detach()[0]
        model.pair = (model.pair[1], model.pair[0] + out.detach()[1])
        return loss

    @wrap
    @torch.no_grad()
    def evaluate(x, written):
        written.add_(1)
        if getattr(model, "center", None) is None:
            return model.queue, x
        scores = (model(x) - mean - model.center) @ model.queue.t()
        scores = scores * (2 if model.center is task.other else 3)
        return model.queue, model.queue[2:4], scores, model.ema["a"] + model.pair[0] * 2

    def call(i):
        loss = step(*batch(i))
        model.center = torch.full((3,), i / 10)
        change(task, i)
        queue, rows, *rest = evaluate(batch(i)[0], written(task, i))
        shared = rows.untyped_storage().data_ptr() == queue.untyped_storage().data_ptr()
        return loss, queue is model.queue, shared, queue, rows, *rest

    return call, lambda: (task, getattr(model, "center", None), model.ema, model.pair, mean)


@compiles(programs=4, calls=20)
def test_an_evaluation_reads_what_training_replaces(wrap):
    return reading(wrap)


CHANGES = {
    "shape": (lambda task: torch.zeros(1), 6),
    "dtype": (lambda task: torch.zeros(3).half(), 6),
    "None": (lambda task: None, 6),
    "gradient": (lambda task: torch.zeros(3).requires_grad_(), 5),
    "parameter": (lambda task: nn.Parameter(torch.zeros(3), requires_grad=False), 6),
    "layout": (lambda task: torch.arange(6.0)[::2], 5),
    "known": (lambda task: task.other, 5),
    "view": (lambda task: task.model.queue[0], 4),
    "deleted": (lambda task: None, 6),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_kind_of_tensor_is_put_there(name):
    value, programs = CHANGES[name]

    def change(task, i):
        if i == 8 and name == "deleted":
            del task.model.center
        elif i == 8:
            task.model.center = value(task)

    compiles(programs=programs, calls=12)(lambda wrap: reading(wrap, change))()


@stays_eager(match="argument shares its memory", programs=4, calls=12)
def test_an_argument_that_is_written_is_put_there(wrap):
    return reading(wrap, written=lambda task, i: task.model.center if i == 8 else torch.zeros(3))


@compiles(programs=6, calls=12)
def test_the_memory_of_a_teacher_and_a_weight_are_replaced(wrap):
    task = Task()
    teacher = copy.deepcopy(task.model)  # which requires gradients

    @wrap
    def step(x, y):
        with torch.no_grad():
            target = teacher(x)
        return task.update(task.loss(x, y) + F.mse_loss(task.model(x), target))

    def call(i):
        loss = step(*batch(i))
        for old, new in zip(teacher.parameters(), task.model.parameters(), strict=True):
            old.data = 0.9 * old.data + 0.1 * new.data
        if i in (6, 8):
            task.model.weight = nn.Parameter(torch.randn(3, 5))
        return loss

    return call, lambda: (task, teacher)


@pytest.mark.parametrize("reads", ["a mask", "a new object", "twice", "stores", "returns"])
def test_replaced_tensors_that_are_no_inputs(reads):
    def build(wrap):
        task = Task()
        task.mask = torch.tensor([True, False, True])
        task.first = task.pair = (torch.zeros(3),)
        task.held = {"mean": torch.zeros(3)}

        @wrap
        def step(x):
            out = task.model(x).detach() + task.held["mean"]
            if reads == "a mask":
                return out[:, task.mask]
            if reads in ("a new object", "returns"):
                return task.held if reads == "returns" else types.SimpleNamespace(
                    mask=task.mask
                ), out
            if reads == "stores":
                task.held["mean"] = out[0]
            else:
                out = out + task.first[0] + task.pair[0]
                task.pair = (out[0],)
            return out

        def call(i):
            task.mask = task.mask.roll(1)
            task.held = {"mean": task.held["mean"] + 1}  # another dictionary
            task.pair = task.first if i == 1 else task.pair
            found = step(batch(i)[0])
            return found, found[0] is task.held, getattr(found[0], "mask", None) is task.mask

        return call, lambda: task

    match, programs = "more than 8|held elsewhere", 0 if reads == "twice" else 8
    plain = stays_eager(match=match, programs=programs, calls=12)
    (compiles(programs=2, calls=12) if reads == "a new object" else plain)(build)()


# -- sharpness-aware minimisation ------------------------------------------------------------


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, adaptive=False, **kwargs):
        super().__init__(params, {"rho": rho, "adaptive": adaptive, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                e_w = (torch.pow(p, 2) if group["adaptive"] else 1.0) * p.grad * scale.to(p)
                p.add_(e_w)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def _grad_norm(self):
        return torch.norm(
            torch.stack(
                [
                    ((torch.abs(p) if group["adaptive"] else 1.0) * p.grad).norm(p=2)
                    for group in self.param_groups
                    for p in group["params"]
                    if p.grad is not None
                ]
            ),
            p=2,
        )


@pytest.mark.parametrize("form", ["two steps", "closure"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_sharpness_aware_minimisation(form, adaptive):
    def build(wrap):
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        task = Task(model=model)
        task.optimizer = SAM(
            model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, adaptive=adaptive
        )

        @wrap
        def step(x, y):
            if form == "closure":

                def closure():
                    loss = task.loss(x, y)
                    loss.backward()
                    return loss

                loss = task.loss(x, y)
                loss.backward()
                task.optimizer.step(closure)
                task.optimizer.zero_grad()
                return loss
            loss = task.loss(x, y)
            loss.backward()
            task.optimizer.first_step(zero_grad=True)
            task.loss(x, y).backward()
            task.optimizer.second_step(zero_grad=True)
            return loss

        return lambda i: step(*batch(i)), lambda: (task, task.optimizer.base_optimizer)

    compiles(programs=1)(build)()


# -- LBFGS, and losses that check their arguments ----------------------------------------------


@compiles(programs=1)
def test_a_closure_of_lbfgs(wrap):
    task = Task(torch.optim.LBFGS, lr=0.5, max_iter=4)
    x, y = batch(0)

    @wrap
    def closure():
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        loss.backward()
        return loss

    return lambda i: task.optimizer.step(closure), lambda: task


@stays_eager(match="reads the value of a tensor while .* trains with values of tensors")
def test_a_whole_step_of_lbfgs(wrap):
    task = Task(torch.optim.LBFGS, lr=0.5, max_iter=4)

    @wrap
    def step(x, y):
        def closure():
            task.optimizer.zero_grad()
            loss = task.loss(x, y)
            loss.backward()
            return loss

        return task.optimizer.step(closure)

    return lambda i: step(*batch(i)), lambda: task


@compiles(programs=1)
def test_a_gaussian_loss(wrap):
    task = Task(torch.optim.Adam, model=nn.Linear(5, 2))
    criterion = nn.GaussianNLLLoss()

    @wrap
    def step(x):
        mean, variance = task.model(x).unbind(1)
        return task.update(criterion(mean, x[:, 0], F.softplus(variance)))

    return lambda i: step(batch(i)[0]), lambda: task


@pytest.mark.parametrize(("by", "programs"), [("shape", 3), ("dtype", 2)])
def test_decisions_by_the_form_of_a_replaced_tensor(by, programs):
    def build(wrap):
        task, held = Task(), {"features": torch.zeros(4, 3)}

        @wrap
        def step(x):
            with torch.no_grad():
                features = task.model(x)
            alike = getattr(held["features"], by) == getattr(features, by)
            held["features"] = features * 2 if alike else features
            return features

        def call(i):
            if by == "dtype" and i == 3:
                held["features"] = held["features"].double()
            return step(batch(i, 3 if by == "shape" and i in (3, 5) else 4)[0])

        return call, lambda: held

    compiles(programs=programs, calls=7)(build)()


@compiles(programs=1)
def test_what_was_there_before_is_returned(wrap):
    held, kept = {"features": torch.zeros(5)}, []

    @wrap
    def step(x):
        before = held["features"]
        held["features"] = x.sum(0)
        return before

    def call(i):
        kept.append(held["features"])
        return step(batch(i)[0]) is kept[-1]

    return call, lambda: (held, kept)
