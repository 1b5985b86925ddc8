"""Numbers of Python that differ at each call and are combined with tensors: slots of a program."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from helpers.compiled_functions import Task, batch, compiles, same_as_plain, stays_eager

BETA = 0.0


def of_a_number(wrap, compute, *, values=None, no_grad=False, kind=torch.optim.SGD):
    """A case of a loss that is computed with a number that differs at each call."""
    task = Task(kind)

    @wrap
    def step(x, y, number):
        if no_grad:
            with torch.no_grad():
                return compute(task.model(x), number)
        return task.update(compute(task.model(x), number).square().mean() + task.loss(x, y))

    def call(i):
        return step(*batch(i), (values or [0.1, -0.3, 0.7, 1e-3, 123.456, 0.1])[i])

    return call, lambda: task


COMBINED = {
    "times": lambda t, n: t * n,
    "times before": lambda t, n: n * t,
    "plus": lambda t, n: n + t + n,
    "minus": lambda t, n: t - n,
    "from": lambda t, n: n - t,
    "by": lambda t, n: t / n,
    "over": lambda t, n: n / (t + 3),
    "functions": lambda t, n: torch.mul(t, n).add(t, alpha=n).sub(t, alpha=n),
    "of a scalar": lambda t, n: t.sum() * n,
    "of doubles": lambda t, n: t.double() * n,
    "in place": lambda t, n: t.mul(2).mul_(n).add_(t, alpha=n).sub_(n),
    "mixed": lambda t, n: n * t + (1 - n) * t.exp() + (n - 2) / 3 * t + (1.5 * n + 1) * t,
    "computed": lambda t, n: t * (1 / n) / (1 - 0.9 ** (n * n)) + 2 * n**2 * math.sqrt(n * n),
    "compared": lambda t, n: torch.where(t > n, t, t * 2),
}


def together(tensors, number):
    """The means of all combinations of tensors with a number."""
    return torch.stack([each(tensors, number).float().mean() for each in COMBINED.values()])


@pytest.mark.parametrize("values", [None, [1, 2, 3, 7, 2_000_001, 1]], ids=["real", "integer"])
def test_a_number_that_is_combined_with_tensors(values):
    def build(wrap):
        # Whose steps are bounded, however large a number is.
        return of_a_number(wrap, together, values=values, kind=torch.optim.Adam)

    compiles(programs=1, calls=6)(build)()


def target_cpu(wrap):
    return of_a_number(wrap, COMBINED["mixed"], kind=torch.optim.Adam)


test_on_the_processor = pytest.mark.compiler(compiles(programs=1, target="cpu")(target_cpu))


@compiles(programs=1)
def test_an_average_with_a_weight_that_grows(wrap):
    task, average = Task(), nn.Linear(5, 3)

    @wrap
    def step(x, y, decay):
        loss, decay = task.update(task.loss(x, y)), max(0.4, min(decay, 0.7))
        with torch.no_grad():
            for mean, param in zip(average.parameters(), task.model.parameters(), strict=True):
                mean.mul_(decay).add_(param, alpha=1 - decay)
                mean.lerp_(param, decay)
        return loss

    return lambda i: step(*batch(i), 1 - 1 / (i + 2)), lambda: (task, average)


@compiles(programs=1)
def test_a_number_in_a_dictionary_of_the_batch(wrap):
    task = Task()

    @wrap
    def step(data):
        return task.update(task.loss(data["x"], data["y"]) * data["more"]["weight"])

    def call(i):
        x, y = batch(i)
        return step({"x": x, "y": y, "more": {"weight": 1 / (i + 1)}})

    return call, lambda: task


@compiles(programs=1)
def test_mixed_batches(wrap):
    task = Task(torch.optim.AdamW)

    @wrap
    def step(x, y, lam, index):
        out = task.model(lam * x + (1 - lam) * x[index])
        loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[index])
        return task.update(loss)

    return lambda i: step(*batch(i), 0.3 + 0.1 * i, torch.randperm(4)), lambda: task


@compiles(programs=1)
def test_zeros_of_both_signs(wrap):
    return of_a_number(
        wrap, lambda t, n: t * n, values=[1.0, 0.0, -0.0, 0.0, -0.0, 1.0], no_grad=True
    )


@compiles(programs=2)
def test_another_type_of_number(wrap):
    return of_a_number(wrap, lambda t, n: t * n, values=[1.0, 2.0, 3.0, 3, 4.0])


@compiles(programs=2)
def test_a_variable_an_attribute_a_global_and_items(wrap):
    global BETA
    BETA, beta = 0.0, 0.0
    task, own, listed, config = Task(), SimpleNamespace(beta=0.0), [0.0, 1], {"beta": 0.0}
    task.model.beta = 0.0

    @wrap
    def step(x, y):
        scale = beta * listed[0] * x.mean() + config["beta"] * BETA * x.sum()
        return task.update(task.loss(x, y) * (1 + own.beta * task.model.beta * x.sum()) + scale)

    def call(i):
        global BETA
        nonlocal beta
        BETA = beta = own.beta = listed[0] = config["beta"] = task.model.beta = 0.1 * i
        return step(*batch(i))

    return call, lambda: (task, own, listed, config)


@compiles(programs=2)
def test_a_counter_that_is_called_as_a_method_of_another_object(wrap):
    class Trainer(Task):
        def __init__(self):
            super().__init__()
            self.step, self.seen = 0, []

        @wrap
        def fit(self, x, y):
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            self.optimizer.step()
            self.seen.append(self.step)
            self.step += 1
            return loss

    trainer = Trainer()
    return lambda i: trainer.fit(*batch(i)), lambda: trainer


@compiles(programs=1, calls=8)
def test_a_weight_that_the_function_computes_of_its_step(wrap):
    task, seen = Task(), []

    @wrap
    def step(x, y, it):
        beta = min(1.0, it / 4)
        loss = task.update(task.loss(x, y) + beta * task.model.weight.abs().sum())
        seen.append((it, beta, loss.item()))
        return loss

    return lambda i: step(*batch(i), i), lambda: (task, seen)


# -- numbers whose value decides something else ----------------------------------------


DECIDING = {
    "a condition": lambda t, n: t * 2 if n > 0.5 else t,
    "an exponent": lambda t, n: t.abs() ** n,
    "a probability": lambda t, n: F.dropout(t, min(abs(n), 0.9)),
    "halves": lambda t, n: t.bfloat16() * n,
    "integers": lambda t, n: (t.long() * n).float(),
    "two types": lambda t, n: torch.lerp(t.double(), t.double(), n).float() * int(n),
    "an error that is caught": lambda t, n: t * caught(n),
    "its type": lambda t, n: t * (2 if type(n) is float else 3),
    "text": lambda t, n: t * len(f"{n}"),
    "an interpolation": lambda t, n: torch.lerp(t, 2 * t, n),
}


def caught(number):
    try:
        return int(number) + 1
    except Exception:  # noqa: BLE001 - as users write it
        return 5


@pytest.mark.parametrize("name", DECIDING)
def test_a_number_that_decides(name):
    programs = 2 if name == "a condition" else 3
    compiles(programs=programs, calls=4)(lambda wrap: of_a_number(wrap, DECIDING[name]))()


@stays_eager(match="the arguments have other shapes, types or values", programs=8, calls=11)
def test_a_number_that_decides_at_each_call(wrap):
    return of_a_number(wrap, DECIDING["an exponent"], values=[0.5 + 0.1 * i for i in range(11)])


@compiles(programs=2, calls=8)
def test_a_number_whose_type_alone_is_asked_for(wrap):
    task = Task()

    @wrap
    def step(x, y, value):
        return task.update(task.loss(x, y) * (2 if isinstance(value, int) else 3))

    return lambda i: step(*batch(i), i if i < 4 else i + 0.5), lambda: task


# -- counters that decide which of several programs runs -------------------------------

COUNT = 0


def average(task):
    with torch.no_grad():
        for mean, param in zip(task.ema.parameters(), task.model.parameters(), strict=True):
            mean.mul_(0.9).add_(param, alpha=0.1)


def copied(task):
    task.ema.load_state_dict(task.model.state_dict())


EVERY = {
    "scheduler": (lambda task, n: task.scheduler.step() if n % 3 == 0 else None, 2),
    "average": (lambda task, n: average(task) if not n % 3 else None, 2),
    "copy": (lambda task, n: copied(task) if n in (4, 7) or n // 2 == 5 else None, 4),
    "warmup": (lambda task, n: task.scheduler.step() if -n < abs(n) - 8 < 4 else None, 3),
}


@pytest.mark.parametrize("where", ["attribute", "global", "argument", "object"])
@pytest.mark.parametrize("name", EVERY)
def test_a_counter_decides_what_some_calls_do(name, where):
    decide, programs = EVERY[name]

    def build(wrap):
        global COUNT
        COUNT = 0
        task, count = Task(torch.optim.Adam), SimpleNamespace(now=0)
        task.count, task.ema, task.losses = 0, nn.Linear(5, 3), []
        task.scheduler = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.9)

        def counted(it):
            global COUNT
            if where == "global":
                COUNT += 1
            if where == "object":
                count.now += 1
            return {"global": COUNT, "object": count.now, "argument": it}[where]

        @wrap
        def step(x, y, it):
            loss = task.update(task.loss(x, y))
            task.losses.append(loss.item())
            task.count += where == "attribute"
            decide(task, task.count if where == "attribute" else counted(it))
            return loss

        it = (lambda i: i + 1) if where == "argument" else (lambda i: 0)
        return lambda i: step(*batch(i), it(i)), lambda: (task, count, COUNT)

    (made,) = same_as_plain(build, calls=12)
    assert made.eager is None
    assert len(made.programs) - programs in (0, 1)  # the first one may have it as a constant


def test_an_error_of_a_number_that_code_catches():
    def inverse(number):
        try:
            return 1 / number
        except ZeroDivisionError:
            return 5.0

    values = [2.0, 3.0, 0.0, 4.0]
    case = compiles(programs=2, calls=4)
    case(lambda wrap: of_a_number(wrap, lambda t, n: t * inverse(n), values=values))()


ASKED = {
    "text": lambda n, loss: str([n, loss.item()]),
    "bits": lambda n, loss: n & 1,
    "sign": lambda n, loss: +n,
    "method": lambda n, loss: n.bit_length(),
    "attribute": lambda n, loss: hasattr(n, "bit_length"),
    "quotient": lambda n, loss: 1 / (n - 5),
    "length": lambda n, loss: hasattr(n, "__len__"),
    "callable": lambda n, loss: callable(n),
}


@pytest.mark.parametrize("catches", [True, False])
@pytest.mark.parametrize("name", ASKED)
def test_what_code_asks_of_a_counter_that_decides(name, catches):
    errors = (TypeError, AttributeError, ZeroDivisionError) if catches else ()

    def build(wrap):
        task = Task(torch.optim.Adam)
        task.n = 0

        @wrap
        def step(x, y):
            loss = task.update(task.loss(x, y))
            task.n += 1
            if task.n % 3 == 0:
                loss = loss * 2
            try:
                return loss, ASKED[name](task.n, loss)
            except errors as error:
                return loss, type(error).__name__

        return lambda i: step(*batch(i)), lambda: (task, task.n)

    same_as_plain(build, calls=8)
