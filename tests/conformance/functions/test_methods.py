"""Methods, copies of objects, decorators, threads and errors of compiled functions."""

import contextlib
import copy
import functools
import itertools
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import abele
from abele.errors import CaptureError
from abele.functions import decorator
from abele.functions.decorator import EagerWarning
from helpers.compiled_functions import Task, batch, compiles, stays_eager


def trainers(wrap):
    """A class with a compiled method."""

    class Trainer(Task):
        def __init__(self):
            super().__init__()
            self.count = 0

        @wrap
        def step(self, x, y):
            loss = self.update(self.loss(x, y))
            self.count += 1
            return loss

    return Trainer


def test_a_method_that_counts_is_captured_once(monkeypatch):
    captures, capture = [], decorator.capture

    def noting(*args, **kwargs):
        captures.append(args)
        return capture(*args, **kwargs)

    monkeypatch.setattr(decorator, "capture", noting)
    monkeypatch.setenv("ABELE_TARGET", "reference")
    trainer = trainers(abele.compile(cache=False, strict=True))()
    for index in range(4):
        trainer.step(*batch(index))
    assert (len(captures), len(trainer.step.programs), trainer.count) == (1, 1, 4)


@compiles(programs=1)
def test_an_object_that_only_the_first_call_counts(wrap):
    class Trainer(Task):
        warm = 0

        @wrap
        def step(self, x, y):
            if self.warm == 0:
                self.warm = 2
            return self.update(self.loss(x, y) * self.warm)

    trainer = Trainer()
    trainer.warm = 0
    return lambda i: trainer.step(*batch(i)), lambda: trainer


class Learner(Task):
    @abele.compile(cache=False, start="wait")
    def step(self, x, y):
        return self.update(self.loss(x, y))


@compiles(programs=2)
def test_each_object_has_programs_of_its_own(wrap):
    kind = trainers(wrap)
    both = kind(), kind()
    return lambda i: [each.step(*batch(i + k)) for k, each in enumerate(both)], lambda: both


@compiles(programs=2)
def test_a_method_of_the_class(wrap):
    kind = trainers(wrap)
    both = kind(), kind()
    return lambda i: [kind.step(each, *batch(i)) for each in both], lambda: both


def copying(wrap, copied):
    """A case of an object that is copied, and its copy given another model, between calls."""
    made = [trainers(wrap)()]

    def call(i):
        if i == 2:
            other = copied(made[0])
            other.model = nn.Linear(5, 3)
            other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
            made.append(other)
        return [each.step(*batch(i)) for each in made]

    return call, lambda: made


@compiles(programs=2)
def test_a_shallow_copy_trains_its_own_model(wrap):
    return copying(wrap, copy.copy)


@compiles(programs=2)
def test_a_deep_copy_trains_its_own_model(wrap):
    return copying(wrap, copy.deepcopy)


@compiles(programs=1)
def test_a_class_with_slots(wrap):
    class Trainer:
        __slots__ = ("task",)

        def __init__(self):
            self.task = Task()

        @wrap
        def step(self, x, y):
            return self.task.update(self.task.loss(x, y))

    trainer = Trainer()
    return lambda i: trainer.step(*batch(i)), lambda: trainer.task


@compiles(programs=2)
def test_methods_of_classes_and_static_methods(wrap):
    class Trainer:
        task = Task()

        @classmethod
        @wrap
        def step(cls, x, y):
            return cls.task.update(cls.task.loss(x, y))

        @staticmethod
        @wrap
        def evaluate(x, y):
            with torch.no_grad():
                return Trainer.task.loss(x, y)

    return lambda i: (Trainer.step(*batch(i)), Trainer.evaluate(*batch(i))), lambda: Trainer.task


@compiles(programs=1)
def test_a_compiled_method_calls_that_of_its_base(wrap):
    class Base(Task):
        @wrap
        def step(self, x, y):
            return self.update(self.loss(x, y))

    class Trainer(Base):
        @wrap
        def step(self, x, y):
            return super().step(x, y) * 2

    trainer = Trainer()
    return lambda i: trainer.step(*batch(i)), lambda: (trainer.model, trainer.optimizer)


@compiles(programs=1)
def test_a_compiled_function_calls_another(wrap):
    task = Task()
    loss_of = wrap(lambda x, y: task.loss(x, y))

    @wrap
    def step(x, y):
        return task.update(loss_of(x, y))

    return lambda i: step(*batch(i)), lambda: task


@compiles(programs=1)
def test_a_module(wrap):
    model = nn.Linear(5, 3)
    run = wrap(model)

    def call(i):
        with torch.no_grad():
            return run(batch(i)[0])

    return call, lambda: model


@compiles(programs=1)
def test_a_partial_function(wrap):
    task = Task()

    def step(scale, x, y):
        return task.update(task.loss(x, y) * scale)

    compiled = wrap(functools.partial(step, 2.0))
    return lambda i: compiled(*batch(i)), lambda: task


@compiles(programs=1)
def test_a_label_out_of_range_is_refused_as_by_torch(wrap):
    task = Task()

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    def call(i):
        x, y = batch(i)
        y[0] = 7 if i == 3 else 0
        return step(x, y)

    return call, lambda: task.model


@compiles(programs=1)
def test_an_error_by_an_argument(wrap):
    task, count = Task(), [0]

    @wrap
    def step(x, y, fails):
        loss = task.update(task.loss(x, y))
        if fails:
            raise ValueError("fails")
        count[0] += 1
        return loss

    return lambda i: step(*batch(i), fails=i == 3), lambda: (task, count)


@stays_eager(match=r"fails by ValueError: always, at \S+test_methods\.py:\d+: `raise ValueError")
def test_an_error_at_each_call(wrap):
    task, count = Task(), [0]

    @wrap
    def step(x, y):
        task.update(task.loss(x, y))
        count[0] += 1
        raise ValueError("always")

    return lambda i: step(*batch(i)), lambda: (task, count)


@compiles(programs=2)
def test_calls_without_gradients_and_in_inference_mode(wrap):
    task = Task()

    @wrap
    def run(x):
        return task.model(x).detach()

    def call(i):
        with torch.no_grad(), torch.inference_mode() if i == 3 else contextlib.nullcontext():
            return run(batch(i)[0]).clone()

    return call, lambda: task


@compiles(programs=1)
def test_calls_of_three_threads(wrap):
    task, count = Task(), [0]

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        count[0] += 1
        return loss.detach()

    lock = threading.Lock() if not isinstance(step, abele.functions.decorator.Function) else None

    def call(i):
        data, found = batch(i), []

        def run():
            with lock or contextlib.nullcontext():
                found.append(step(*data).item())

        threads = [threading.Thread(target=run) for _ in range(3 if i > 1 else 1)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return sorted(found)

    return call, lambda: (task, count)


# -- why a function stays plain PyTorch ----------------------------------------


@stays_eager(match="is a generator or coroutine")
def test_a_generator(wrap):
    task = Task()

    @wrap
    def steps(x, y):
        for _ in range(2):
            yield task.update(task.loss(x, y)).item()

    return lambda i: [*steps(*batch(i))], lambda: task


@stays_eager(match=r"reaches batches, an iterator or cache \(list_iterator\)")
def test_an_iterator(wrap):
    task, batches = Task(), iter([batch(i) for i in range(9)])

    @wrap
    def step():
        return task.update(task.loss(*next(batches)))

    return lambda i: step(), lambda: task


@stays_eager(
    match="more than 8 programs; in this call the arguments have other", calls=11, programs=8
)
def test_more_shapes_than_programs(wrap):
    @wrap
    def run(x):
        return x.sum()

    return lambda i: run(torch.ones(i + 1)), list


def test_pickled_objects_and_functions_compile_anew(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.setitem(globals(), "Learner", Learner)
    learner = Learner()
    for i in range(3):
        learner.step(*batch(i))
    assert len(learner.step.programs) == 1
    other = copy.deepcopy(learner)
    assert other.step.function.__self__ is other
    assert not other.step.programs
    assert torch.equal(other.step(*batch(5)), learner.step(*batch(5)))
    assert copy.deepcopy(learner.step).function.__self__ is not learner
    assert not pickle.loads(pickle.dumps(learner.step)).programs  # noqa: S301 - made here


def test_strict_functions_raise():
    @abele.compile(cache=False, strict=True)
    def run(x):
        while x.sum() < 9:
            x = x * 2
        return x

    run(torch.ones(2))
    with pytest.raises(CaptureError, match="reads the value of a tensor"):
        run(torch.ones(2))


def test_the_warning_says_the_reason_and_what_to_do():
    @abele.compile(cache=False)
    def run(x):
        return [*iterator, x]

    iterator = iter([])
    run(torch.ones(1))
    with pytest.warns(EagerWarning, match=r"run runs as plain PyTorch .* iterator .* strict=True"):
        run(torch.ones(1))
    assert "plain PyTorch, because The function reaches iterator" in repr(run)


def test_calls_of_unknown_programs_are_shown(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model = nn.Linear(5, 3)

    @abele.compile(cache=False)
    def run(x, y):
        with torch.no_grad():
            return F.cross_entropy(model(x), y)

    assert repr(run).endswith("run: 0 programs>")
    run(*batch(0))
    run(*batch(1))
    assert repr(run).endswith("run: 1 program on reference>")


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another one that has no state of its own, as Accelerate's."""

    def __init__(self, inner):
        self.inner, self.zero_grad = inner, inner.zero_grad

    def step(self, closure=None):
        self.inner.step(closure)


@compiles(programs=1)
def test_an_accelerator_clips_an_iterator_of_parameters(wrap):
    task = Task(torch.optim.AdamW)
    optimizer = Wrapping(task.optimizer)

    def clip(parameters):
        return nn.utils.clip_grad_norm_(parameters, 0.1)

    @wrap
    def step(x, y):
        loss = task.loss(x, y)
        loss.backward()
        clip(itertools.chain(task.model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return lambda i: step(*batch(i)), lambda: task
