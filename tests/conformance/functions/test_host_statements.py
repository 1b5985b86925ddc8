"""Statements that Python runs at each call of a program: numbers, lists, counters and logs."""

import collections
import copy
import dataclasses
import io
import logging
import math
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import abele
from helpers.compiled_functions import Task, batch, compiles, same_as_plain, stays_eager

COUNT = 0


@compiles(programs=1)
def test_a_counter_and_a_list_of_an_object(wrap):
    class Trainer(Task):
        def __init__(self):
            super().__init__()
            self.count, self.losses = 0, []

        @wrap
        def step(self, x, y):
            self.count += 1
            loss = self.update(self.loss(x, y))
            self.losses.append(loss.item())
            return loss.item()

    trainer = Trainer()
    return lambda i: trainer.step(*batch(i)), lambda: trainer


@compiles(programs=1)
def test_a_global_counter_and_elements_of_an_array(wrap):
    global COUNT
    COUNT, task, counts = 0, Task(), np.zeros(2)

    @wrap
    def step(x, y):
        global COUNT
        counts[0] += 1
        loss = task.update(task.loss(x, y))
        COUNT += 1
        counts[1] += loss.item()
        return loss

    return lambda i: step(*batch(i)), lambda: (task, COUNT, counts)


@compiles(programs=1)
def test_the_best_loss_so_far(wrap):
    task, best = Task(), {"loss": 9e9, "since": 0}

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        value = loss.item()
        if value < best["loss"]:
            best["loss"], best["since"] = value, 0
        else:
            best["since"] += 1
        return value, best["since"]

    return lambda i: step(*batch(i)), lambda: (task, best)


@compiles(programs=1)
def test_lines_of_a_log_and_a_file(wrap):
    task, text = Task(), io.StringIO()
    log = logging.Logger("steps")
    log.addHandler(logging.StreamHandler(text))

    @wrap
    def step(x, y):
        log.info("begin")
        text.write("update\n")
        loss = task.update(task.loss(x, y))
        log.info("loss %s", loss.item())
        print(f"{loss.item():.4f}", task.model.weight.abs().mean().item(), file=text)

    return lambda i: step(*batch(i)), lambda: (task, text.getvalue())


@compiles(programs=1)
def test_texts_arrays_and_lists_of_numbers(wrap):
    task, means = Task(), []

    @wrap
    def step(x, y):
        out = task.model(x)
        loss = task.update(F.cross_entropy(out, y))
        means.append(out.detach().numpy().mean())
        texts = f"{loss.item():.4f} {loss}", f"{loss.detach():.3f}", str(loss.item())
        return (
            texts,
            out.detach().numpy(),
            round(loss.item(), 3),
            loss.tolist(),
            np.asarray(out.detach()),
        )

    return lambda i: step(*batch(i)), lambda: (task, means)


@compiles(programs=1)
def test_tensors_are_kept_in_containers_and_attributes(wrap):
    task, losses, best, latest = Task(), [], {}, collections.deque(maxlen=3)
    task.last, last = None, []

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        losses.append(loss.detach())
        latest.append(loss.detach())
        task.last = loss.detach()
        best.update({name: value.clone() for name, value in task.model.state_dict().items()})
        last.append(loss.detach())
        if len(last) > 3:
            last.pop(0)
        return loss

    return lambda i: step(*batch(i)), lambda: (task, losses, best, [*latest], last)


@compiles(programs=1)
def test_a_function_below_a_decorator(wrap):
    model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.3))

    @wrap
    @torch.no_grad()
    def evaluate(x, y):
        model.eval()
        out = model(x)
        return F.cross_entropy(out, y), (out.argmax(1) == y).sum().item()

    return lambda i: (model.train(), evaluate(*batch(i)))[1], lambda: model


@compiles(programs=1)
def test_an_inner_loop_with_a_sum_of_numbers(wrap):
    task = Task()

    @wrap
    def epoch(batches):
        total = 0.0
        for x, y in batches:
            loss = task.update(task.loss(x, y))
            total += loss.item()
        return total / len(batches)

    return lambda i: epoch([batch(i), batch(i + 9)]), lambda: task


@compiles(programs=1)
def test_a_counter_that_the_loss_reads(wrap):
    task, box = Task(), [0]

    @wrap
    def step(x, y):
        box[0] += 1
        return task.update(task.loss(x, y) * box[0])

    return lambda i: step(*batch(i)), lambda: (task, box)


@pytest.mark.parametrize("form", ["loop", "indices", "text", "helper", "meter", "asserted"])
def test_logs_behind_a_step(form):
    def build(wrap):
        return logging_step(wrap, form)

    compiles(programs=1)(build)()


def share(logits, y):
    return (logits.argmax(1) == y).float().mean().item()


class Meter:
    total = 0.0

    def update(self, value, count):
        self.total += float(value) * count


def logging_step(wrap, form):
    task, log, meter = Task(), {}, Meter()

    def trained(x, y):
        logits = task.model(x)
        parts = {"a": F.cross_entropy(logits, y), "b": logits.square().mean()}
        task.update(sum(parts.values()))
        return logits, parts

    @wrap
    def loop(x, y):
        _, parts = trained(x, y)
        for name, part in parts.items():
            log.setdefault(name, []).append(part.item())

    @wrap
    def indices(x, y):
        values = list(trained(x, y)[1].values())
        for i in range(2):
            log[i] = values[i].item()

    @wrap
    def text(x, y):
        _, parts = trained(x, y)
        line = ""
        for name, part in parts.items():
            line += f"{name}={part.item():.6f} "
        log["line"] = line

    @wrap
    def helper(x, y):
        logits, _ = trained(x, y)
        log["share"] = share(logits, y)
        return log["share"]

    @wrap
    def meters(x, y):
        logits, parts = trained(x, y)
        meter.update(parts["a"].detach(), len(x))
        meter.update(share(logits, y), len(x))
        return meter.total

    @wrap
    def asserted(x, y):
        loss = trained(x, y)[1]["a"]
        value = loss.item()
        assert value == value
        assert not torch.isnan(loss)

    step = {"meter": meters}.get(form) or locals()[form]
    return lambda i: step(*batch(i)), lambda: (task, log, vars(meter))


@compiles(programs=1)
def test_helpers_change_what_they_are_given(wrap):
    task = Task()

    def fill(log, loss):
        log["loss"] = loss.item()

    def normalise(values):
        values.div_(values.sum().item())

    @wrap
    def step(x, y):
        log, loss = {}, task.update(task.loss(x, y)).detach()
        weights = loss.expand(4).clone()
        fill(log, loss)
        normalise(weights)
        return log, weights * 2

    return lambda i: step(*batch(i)), lambda: task


# -- statements that a program can not go around ----------------------------------------


def require_finite(value):
    if not math.isfinite(value):
        raise FloatingPointError("nan")


@compiles(programs=1)
def test_a_loss_function_with_a_check_is_traced_where_its_number_is_logged(wrap):
    task, log = Task(), []

    def distance(logits, y):
        if len(logits) != len(y):
            raise ValueError("as many labels as rows")
        return F.cross_entropy(logits, y)

    @wrap
    def step(x, y):
        log.append(distance(task.model(x), y).item())
        return task.update(task.loss(x, y))

    return lambda i: step(*batch(i)), lambda: (task, log)


@pytest.mark.parametrize("ending", ["raises", "exits", "asserts"])
def test_a_check_before_the_update_ends_the_call(ending):
    def build(wrap):
        task = Task()

        @wrap
        def raises(x, y):
            loss = task.loss(x, y)
            require_finite(loss.item())
            return task.update(loss)

        @wrap
        def exits(x, y):
            loss = task.loss(x, y)
            if not math.isfinite(loss.item()):
                sys.exit(1)
            return task.update(loss)

        @wrap
        def asserts(x, y):
            loss = task.loss(x, y)
            value = loss.item()
            assert value == value
            return task.update(loss)

        step = locals()[ending]

        def call(i):
            x, y = batch(i)
            try:
                return step(x * (float("nan") if i == 3 else 1), y)
            except (FloatingPointError, AssertionError, SystemExit) as error:
                return type(error).__name__

        return call, lambda: task

    stays_eager(match="may raise an error|sys.exit exits|ends the call early")(build)()


@compiles(programs=1)
def test_a_helper_keeps_weights_before_the_update(wrap):
    task, best = Task(), {}

    class Keep:
        def __call__(self, value):
            best["state"] = {k: v.clone() for k, v in task.model.state_dict().items()}
            best["loss"] = value

    helper = Keep()

    @wrap
    def step(x, y):
        loss = task.loss(x, y)
        helper(loss.item())
        return task.update(loss)

    return lambda i: step(*batch(i)), lambda: (task, best)


@pytest.mark.parametrize("name", ["weigh", "exit_if"])
def test_a_helper_that_is_called_before_the_update_changes_what_it_reads(name):
    match = {
        "weigh": "helper may change weight, which the step reads",
        "exit_if": "helper exits",
    }

    def build(wrap):
        task, weight = Task(), {"now": 1.0}

        def weigh(value):
            weight["now"] = 1 / (1 + value)

        def exit_if(value):
            if value > 1e9:
                sys.exit(1)

        helper = {"weigh": weigh, "exit_if": exit_if}[name]

        @wrap
        def step(x, y):
            loss = task.loss(x, y)
            helper(loss.item())
            return task.update(loss * weight["now"])

        return lambda i: step(*batch(i)), lambda: (task, weight)

    stays_eager(match=match[name])(build)()


@compiles(programs=1)
def test_a_helper_that_reads_numbers_of_a_model(wrap):
    task = Task()

    @wrap
    def step(x, y):
        task.update(task.loss(x, y))
        return share(task.model(x), y)

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match="A loop over batches: decorate a function of one batch")
def test_an_epoch(wrap):
    task, data = Task(), torch.utils.data.TensorDataset(*batch(0))

    @wrap
    def epoch(shuffled):
        for x, y in torch.utils.data.DataLoader(data, batch_size=2, shuffle=shuffled):
            task.update(task.loss(x, y))

    return lambda i: epoch(False), lambda: task


@stays_eager(match="reads the value of a tensor")
def test_a_step_that_skips_nan(wrap):
    task, skipped = Task(), []

    @wrap
    def step(x, y):
        loss = task.loss(x, y)
        if torch.isnan(loss):
            skipped.append(1)
            return None
        return task.update(loss)

    def call(i):
        x, y = batch(i)
        return step(x * (float("nan") if i == 3 else 1), y)

    return call, lambda: (task, skipped)


@stays_eager(match="ends the call early by the value of a tensor")
def test_steps_until_the_loss_is_small(wrap):
    task = Task()

    @wrap
    def steps(x, y):
        for _ in range(4):
            loss = task.update(task.loss(x, y))
            if loss.item() < 1.0:
                break
        return loss

    return lambda i: steps(*batch(i)), lambda: task


@stays_eager(match="draws random numbers besides those of the program")
def test_random_numbers_in_a_condition(wrap):
    task, drawn = Task(model=nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5))), []

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        if loss.item() > 0.5:
            drawn.append(torch.rand(()).item())
        return task.loss(x, y).item()

    return lambda i: step(*batch(i)), lambda: (task, drawn)


@compiles(programs=1)
def test_a_return_of_a_number_in_a_try(wrap):
    task, count = Task(), [0]

    @wrap
    def step(x, y):
        try:
            return task.update(task.loss(x, y)).item()
        finally:
            count[0] += 1

    return lambda i: step(*batch(i)), lambda: (task, count)


@compiles(programs=1)
def test_a_counter_in_forward(wrap):
    class Counting(nn.Linear):
        n = 0

        def forward(self, x):
            self.n += 1
            return super().forward(x)

    model = Counting(5, 3)
    task = Task(model=model)

    @wrap
    def step(x, y):
        return task.update(F.cross_entropy(model(x), y))

    return lambda i: step(*batch(i)), lambda: (task, model.n)


@compiles(programs=1)
def test_a_counter_of_a_function_that_is_called_after_it_is_read(wrap):
    task, counter, seen = Task(), SimpleNamespace(n=0), []

    def tick():
        counter.n += 1

    @wrap
    def step(x, y):
        seen.append(counter.n)
        loss = task.update(task.loss(x, y))
        tick()
        return loss * 2

    return lambda i: step(*batch(i)), lambda: (task, counter, seen)


class Ticker:
    """A count that other code reads."""

    def __init__(self):
        self.n, self.seen = 0, []

    @property
    def due(self):
        return self.n % 3 == 0

    def __len__(self):
        return self.n % 3

    def scale(self):
        return 1.0 + self.n

    def many(self):
        return len(self.seen) % 3 == 0

    def decays(self, scheduler):
        return scheduler.last_epoch % 3 == 0


READS = {
    "property": lambda ticker, scheduler: 2.0 if ticker.due else 1.0,
    "length": lambda ticker, scheduler: 2.0 if len(ticker) else 1.0,
    "number": lambda ticker, scheduler: ticker.scale(),
    "list": lambda ticker, scheduler: 2.0 if ticker.many() else 1.0,
    "epoch": lambda ticker, scheduler: 2.0 if scheduler.last_epoch % 3 else 1.0,
    "epoch in a method": lambda ticker, scheduler: 2.0 if ticker.decays(scheduler) else 1.0,
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", READS)
def test_code_that_the_function_calls_reads_what_it_changes(name, first):
    def build(wrap):
        task, ticker = Task(torch.optim.Adam), Ticker()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.9)

        @wrap
        def step(x, y):
            before = 1.0 if first else READS[name](ticker, scheduler)
            loss = task.update(before * task.loss(x, y))
            ticker.n += 1
            ticker.seen.append(loss.item())
            scheduler.step()
            return loss * (READS[name](ticker, scheduler) if first else 1.0)

        return lambda i: step(*batch(i)), lambda: (task, ticker.n, ticker.seen)

    same_as_plain(build, calls=8)


@compiles(programs=1)
def test_a_check_of_a_counter_at_the_end(wrap):
    task, counter = Task(), SimpleNamespace(n=0)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        counter.n += 1
        assert counter.n < 4, "late"
        return loss

    def call(i):
        try:
            return step(*batch(i))
        except AssertionError:
            return "late"

    return call, lambda: (task, counter)


@compiles(programs=1, calls=11)
def test_a_list_of_losses_that_starts_anew(wrap):
    class Averaging(Task):
        it = 0

        @wrap
        def step(self, x, y):
            loss = self.update(self.loss(x, y))
            self.it += 1
            self.losses.append(loss.detach())
            if self.it % 3 == 0:
                self.means.append(torch.stack(self.losses).mean().item())
                print(f"{self.means[-1]:.4f}")
                self.losses = []
            return loss

    task = Averaging()
    task.it, task.losses, task.means = 0, [], []
    return lambda i: task.step(*batch(i)), lambda: (task, task.it, task.losses, task.means)


@compiles(programs=1)
def test_a_counter_of_code_without_a_file(wrap):
    space = {"task": Task(), "n": 0}
    code = "def step(x, y):\n global n\n n += 1\n return task.update(task.loss(x, y))"
    exec(code, space)
    step = wrap(space["step"])
    return lambda i: step(*batch(i)), lambda: (space["task"], space["n"])


@compiles(programs=1)
def test_norms_of_gradients_before_the_update(wrap):
    task, norms = Task(), []

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        task.loss(x, y).backward()
        norms.append(task.model.weight.grad.norm().item())
        task.optimizer.step()

    return lambda i: step(*batch(i)), lambda: (task, norms)


def _add(values, number):
    values.append(number)


CHANGES = {
    "an item": lambda given, x: given.update(loss=x.sum().item()),
    "a list in it": lambda given, x: given["losses"].append(x.sum().item()),
    "a helper": lambda given, x: _add(given["losses"], x.sum().item()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_containers_among_arguments_are_changed(name):
    change = CHANGES[name]

    def build(wrap):
        @wrap
        def step(x, given):
            change(given, x)
            return x * 2

        given = {"losses": []}
        return lambda i: step(batch(i)[0], given), lambda: given

    compiles(programs=2 if name == "an item" else 3, calls=4)(build)()


@compiles(programs=2)
def test_a_dictionary_of_the_caller_is_changed(wrap):
    task, stats = Task(), {}

    @wrap
    def step(x, y, stats):
        loss = task.update(task.loss(x, y))
        stats["loss"] = stats.get("loss", 0) + loss.item()
        return loss

    return lambda i: step(*batch(i), stats), lambda: (task, stats)


@compiles(programs=3, calls=4)
def test_a_list_in_a_tuple_of_the_caller_is_changed(wrap):
    losses = []

    @wrap
    def step(pair):
        x, known = pair
        known.append(x.sum().item())
        return x * 2

    return lambda i: step((batch(i)[0], losses)), lambda: losses


@compiles(programs=1)
def test_a_default_is_changed_and_read(wrap):
    @wrap
    def step(x, seen=[]):  # noqa: B006 - what is tested
        seen.append(x.sum().item())
        return len(seen), sum(seen)

    return lambda i: step(batch(i)[0]), lambda: None


@compiles(programs=1)
def test_an_argument_is_written_with_a_number(wrap):
    @wrap
    def step(x):
        total = x.sum().item()
        x.add_(total)
        return x * 2

    def call(i):
        x = batch(i)[0]
        return step(x), x

    return call, lambda: None


def of_keywords(x, **more):
    y = (x * 2).sum()
    more["history"].append(y.item())
    return y


def of_its_own(x, history):
    y = (x * 2).sum()
    held = {"history": history}
    held["history"].append(y.item())
    return y


@pytest.mark.filterwarnings("ignore::abele.EagerWarning")
@pytest.mark.parametrize("step", [of_keywords, of_its_own])
def test_a_list_inside_a_container_of_the_call_is_not_copied(step):
    compiled, history = abele.compile(step), []
    for i in range(8):
        compiled(torch.ones(3) * i, history=history)
    assert history == [6.0 * i for i in range(8)]


@compiles(programs=1)
def test_numbers_that_a_lock_guards(wrap):
    task, lock, log = Task(), threading.Lock(), []

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        with lock:
            log.append((loss.item(), lock.locked()))
        return loss

    return lambda i: step(*batch(i)), lambda: (task, log)


@stays_eager(match="trains and reads numbers under lock. Read them behind it")
def test_a_step_and_numbers_under_one_lock(wrap):
    task, lock, log = Task(), threading.Lock(), []

    @wrap
    def step(x, y):
        with lock:
            loss = task.update(task.loss(x, y))
            log.append((loss.item(), lock.locked()))
        return loss

    return lambda i: step(*batch(i)), lambda: (task, log)


State = dataclasses.make_dataclass("State", [("count", int, 0), ("loss", float, 1.0)])
WHOLE = {
    "asdict": dataclasses.asdict,
    "replace": dataclasses.replace,
    "vars": lambda state: {**vars(state)},
    "copy": copy.copy,
    "by name": lambda state: [getattr(state, each.name) for each in dataclasses.fields(state)],
}


@pytest.mark.parametrize("read", WHOLE.values(), ids=WHOLE)
def test_an_object_is_read_whole_behind_statements_that_set_numbers(read):
    def build(wrap):
        task, state = Task(), State()

        @wrap
        def step(x, y):
            loss = task.loss(x, y)
            state.loss = loss.item()
            seen = read(state)
            task.update(loss)
            state.count += 1
            return loss, seen, read(state), 2 * state.loss

        return lambda i: step(*batch(i)), lambda: (task, state)

    compiles(programs=1)(build)()


@compiles(programs=2)
def test_a_variable_has_the_name_of_an_attribute_that_a_helper_reads(wrap):
    task, state, scale = Task(), State(), lambda state: state.count

    @wrap
    def step(x, y):
        count = task.update(task.loss(x, y) * scale(state)).item()
        return count

    return lambda i: [setattr(state, "count", 1 + i // 3), step(*batch(i))], lambda: task


@compiles(programs=1)
def test_a_number_is_kept_under_the_name_of_a_setting_of_a_layer(wrap):
    task = Task(model=nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3)))
    kept = SimpleNamespace(eps=0.0)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        kept.eps = loss.item()
        return loss

    return lambda i: step(*batch(i)), lambda: (task, kept)


@stays_eager(match=r"computes with momentum, which line \d+ sets after the program")
def test_a_number_becomes_a_setting_of_a_layer(wrap):
    task = Task(model=nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)))

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        task.model[1].momentum = min(0.9, loss.item())
        return loss

    return lambda i: step(*batch(i)), lambda: task
