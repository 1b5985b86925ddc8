"""Numbers of tensors that helpers return and count, and numbers set between backward and update."""

import contextlib
import operator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from numpy import asarray
from torch import nn

from helpers.compiled_functions import Task, batch, compiles, same_as_plain, stays_eager

CORRECT = TOTAL = 0


@compiles(programs=1)
def test_a_method_of_a_trainer_trains_counts_and_keeps_a_history(wrap):
    class Trainer(Task):
        count, average, best = 0, 0.0, 9.0

        def _step(self, data):
            out = self.model(data[0])
            loss = self.update(F.cross_entropy(out, data[1]))
            self.count += 1
            self.average = 0.9 * self.average + 0.1 * loss.item()
            self.best = min(self.best, loss.item())
            self.history.append(loss.item())
            self.seen["last"] = loss.item()
            return {"loss": loss.item(), "share": (out.argmax(1) == data[1]).float().mean().item()}

        @wrap
        def train_batch(self, x, y):
            return self._step((x, y))

    trainer = Trainer(torch.optim.Adam)
    trainer.history, trainer.seen = [], {"last": None}
    return lambda i: trainer.train_batch(*batch(i)), lambda: trainer


@compiles(programs=1)
def test_a_running_accuracy_before_backward(wrap):
    global CORRECT, TOTAL
    CORRECT = TOTAL = n_correct = n_total = 0
    task, space = Task(torch.optim.Adam), SimpleNamespace(n_correct=0, n_total=0)

    @wrap
    def step(x, y):
        nonlocal n_correct, n_total
        global CORRECT, TOTAL
        task.optimizer.zero_grad()
        answer = task.model(x)
        n_correct += (torch.max(answer, 1)[1].view(y.size()) == y).sum().item()
        CORRECT += (answer.argmin(1) == y).sum().item()
        space.n_correct += (answer.argmax(1) == 1).sum().item()
        n_total, TOTAL, space.n_total = n_total + len(x), TOTAL + 1, space.n_total + len(y)
        shares = 100.0 * n_correct / n_total, CORRECT / TOTAL
        train_acc = round(100.0 * space.n_correct / space.n_total, 2)
        loss = F.cross_entropy(answer, y)
        loss.backward()
        task.optimizer.step()
        return loss, shares, train_acc

    return (
        lambda i: step(*batch(i)),
        lambda: (task, vars(space), n_correct, n_total, CORRECT, TOTAL),
    )


@compiles(programs=1)
def test_a_number_of_the_loss_scales_it(wrap):
    task = Task()

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        scale = loss.item()
        (loss * scale).backward()
        task.optimizer.step()
        return scale

    return lambda i: step(*batch(i)), lambda: task


@pytest.mark.parametrize("form", ["condition", "text", "length"])
def test_a_number_that_decides_in_a_helper(form):
    def build(wrap):
        task = Task()

        def helper(x, y):
            value = task.update(task.loss(x, y)).item()
            if form == "condition":
                return "low" if value < 1 else "high"
            if form == "text":
                return f"{value:.3f}"
            return [0] * max(1, int(value))

        @wrap
        def step(x, y):
            return helper(x, y)

        return lambda i: step(*batch(i)), lambda: task

    stays_eager(match="reads the value of a tensor")(build)()


@stays_eager(match="reads the value of a tensor")
def test_an_error_of_a_number_is_caught_in_a_helper(wrap):
    task = Task()

    def helper(x, y):
        loss = task.update(task.loss(x, y))
        try:
            return 1.0 if loss.item() < 1 else 2.0
        except Exception:  # noqa: BLE001 - as users write it
            return 5.0

    @wrap
    def step(x, y):
        return helper(x, y)

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match="8 programs|more than 8", programs=8, calls=11)
def test_a_list_whose_length_a_helper_reads(wrap):
    task, losses = Task(), []

    def helper(x, y):
        loss = task.update(task.loss(x, y))
        losses.append(loss.item())
        return len(losses)

    @wrap
    def step(x, y):
        return helper(x, y)

    return lambda i: step(*batch(i)), lambda: (task, losses)


# -- learning rates between backward and update --------------------------------------------


def rate_between(wrap, set_rate, kind=torch.optim.SGD):
    task = Task(kind, lr=0.1)

    @wrap
    def step(x, y, it):
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        loss.backward()
        set_rate(task.optimizer, it)
        task.optimizer.step()
        return loss

    return lambda i: step(*batch(i), i), lambda: task


def by_power(optimizer, it):
    lr = 0.1 * 0.5**it
    for group in optimizer.param_groups:
        group["lr"] = lr


def by_decay(optimizer, it):
    del it
    optimizer.param_groups[0]["lr"] *= 0.9


def constant(optimizer, it):
    del it
    for group in optimizer.param_groups:
        group["lr"] = 0.05


def by_condition(optimizer, it):
    lr = 0.01 * (it + 1) if it < 3 else 0.1
    for group in optimizer.param_groups:
        group["lr"] = lr


@pytest.mark.parametrize("set_rate", [by_power, by_decay, constant])
def test_a_rate_set_between_backward_and_update(set_rate):
    kind = torch.optim.AdamW if set_rate is by_power else torch.optim.SGD
    programs = 2 if set_rate is by_decay else 1
    compiles(programs=programs, calls=7)(lambda wrap: rate_between(wrap, set_rate, kind))()


@compiles(programs=1, calls=7)
def test_a_rate_by_conditions_between_backward_and_update(wrap):
    return rate_between(wrap, by_condition)


@compiles(programs=1)
def test_a_rate_set_in_the_decorated_function(wrap):
    class Own(Task):
        it = 0

        @wrap
        def step(self, x, y):
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            self.it += 1
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1 / (1 + 0.1 * self.it)
            self.optimizer.step()
            return loss

    own = Own()
    own.it = 0
    return lambda i: own.step(*batch(i)), lambda: own


@compiles(programs=1)
def test_a_rate_set_behind_the_update(wrap):
    task = Task(torch.optim.Adam)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        task.optimizer.param_groups[0]["lr"] *= 0.9
        return loss

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match="scheduler|changes objects of Python|changes an object")
def test_a_rate_set_behind_a_scheduler(wrap):
    task = Task()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.9)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        scheduler.step()
        for group in task.optimizer.param_groups:
            group["lr"] *= 0.5
        return loss

    return lambda i: step(*batch(i)), lambda: (task, scheduler)


@compiles(programs=1)
def test_tensors_and_numbers_in_modules(wrap):
    class Counting(nn.Linear):
        seen, loss = 0, 0.0

        def forward(self, x):
            self.seen += len(x)
            self.loss = x.abs().mean().item()
            return super().forward(x)

    task = Task(model=Counting(5, 3))

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    return lambda i: step(*batch(i)), lambda: (task, task.model.seen, task.model.loss)


class _Kept:
    """Descriptor that keeps a value in another attribute, and counts."""

    def __get__(self, owner, kind=None):
        return owner.raw

    def __set__(self, owner, value):
        owner.raw, owner.count = value, owner.count + 1


class Numbers:
    raw, count, seen, last = 0.5, 0, 0.0, _Kept()

    def __setitem__(self, key, value):
        vars(self)["r" + "aw"] = value

    def __setattr__(self, name, value):
        object.__setattr__(self, "raw" if name == "hidden" else name, value)

    @contextlib.contextmanager
    def at(self, value):
        self.raw = value
        yield
        self.count += 1


class Table(dict):
    raw, count = 0.5, 0

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.raw, self.count = value, self.count + 1


def assigned(numbers, value):
    numbers.last = value


def added(numbers, value):
    numbers.last += value


def within(numbers, value):
    with numbers.at(value):
        numbers.count += 1


@pytest.mark.parametrize(
    ("put", "kind"),
    [
        *((put, Numbers) for put in (assigned, added, within)),
        (lambda numbers, value: setattr(numbers, "hidden", value), Numbers),
        (lambda numbers, value: numbers.__dict__.update(raw=value), Numbers),
        *(
            (lambda numbers, value: operator.setitem(numbers, "key", value), k)
            for k in (Numbers, Table)
        ),
    ],
)
def test_a_number_that_code_of_a_class_keeps_elsewhere(put, kind):
    def build(wrap):
        task, numbers = Task(), kind()

        @wrap
        def step(x, y):
            loss = task.loss(x, y)
            put(numbers, loss.item())
            numbers.seen = numbers.raw
            task.update(loss)
            numbers.count += 1
            return numbers.raw, numbers.count

        return lambda i: step(*batch(i)), lambda: (task, vars(numbers))

    assert same_as_plain(build)


@compiles(programs=1, calls=6)
def test_the_best_loss_and_the_calls_since(wrap):
    task, state = Task(), SimpleNamespace(best=float("inf"), since=0, rows=[])

    def log(step, value):
        state.rows.append({"step": step, "loss": value})

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        if loss.item() < state.best:
            state.best, state.since = loss.item(), 0
        else:
            state.since += 1
            log(state.since, loss.item())
        return state.since

    return lambda i: step(*batch(i)), lambda: (task, vars(state))


READS = [
    *(lambda t: sum(t.tolist()), lambda t: float(t.numpy().sum()), lambda t: float(asarray(t)[0])),
    lambda t: torch.from_dlpack(t)[0].item(),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.filterwarnings("ignore::abele.EagerWarning")
def test_numbers_of_the_state_that_a_helper_reads_from_memory(read):
    def build(wrap):
        task, state = Task(), torch.ones(2)
        step = wrap(lambda x, y: task.update(task.loss(x, y) * read(state)))

        def call(i):
            state.add_(i)
            return step(*batch(i))

        return call, lambda: (task, state)

    assert same_as_plain(build)
