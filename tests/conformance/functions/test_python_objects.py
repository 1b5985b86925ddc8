"""What functions keep in classes, slots, functions and tensors, and read of these."""

import contextlib
import io
import queue
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import abele
from helpers.compiled_functions import Task, batch, compiles, stays_eager


class Slots:
    __slots__ = ("last", "n", "scale", "total")


class Config(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


HOLDERS = {
    "slots": Slots(),
    "class": type("Meter", (), {}),
    "function": lambda: None,
    "tensor": torch.nn.Parameter(torch.zeros(2)),
    "dictionary": Config(),
    "attributes of a dictionary": type("Tracker", (dict,), {})(),
    "attributes of a list": type("Record", (list,), {})(),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_numbers_and_tensors_of_an_object(holder):
    def build(wrap):
        holder.n, holder.total, holder.last, holder.scale = 0, 0.0, None, 1.0
        task = Task()

        def helper(x, y):
            loss = task.update(task.loss(x, y) * holder.scale)
            holder.n += 1
            holder.total += loss.item()
            holder.last = loss.detach()
            return loss

        step = wrap(lambda x, y: helper(x, y))

        def call(i):
            holder.scale = 1.0 if i < 5 else 2.0
            return step(*batch(i))

        return call, lambda: (task, holder.n, holder.total, holder.last)

    compiles(programs=2, calls=8)(build)()


READ = {
    "float": lambda out: (float(out.sum()), int(out.argmax()), isinstance(1.5, float)),
    "numpy": lambda out: {"weights": out.detach().cpu().numpy()},
    "tolist": lambda out: (out.tolist(), out.sum().tolist()),
}


@pytest.mark.parametrize("name", READ)
def test_numbers_that_a_helper_reads(name):
    def build(wrap):
        task, log = Task(), []

        def helper(x, y):
            out = task.model(x).detach()
            log.append(READ[name](out))
            found = READ[name](out), READ[name](task.model.weight.detach()), out.mul_(2)
            return found, task.update(task.loss(x, y))

        step = wrap(lambda x, y: helper(x, y))
        return lambda i: step(*batch(i)), lambda: (task, log)

    compiles(programs=1)(build)()


@stays_eager(match="reads the value of a tensor")
def test_functions_of_numpy_read_an_array(wrap):
    model = Task().model

    def largest(x):
        return model(x).detach().numpy().max()

    step = wrap(lambda x: largest(x))
    return lambda i: step(batch(i)[0]), lambda: model


@compiles(programs=2, calls=7)
def test_a_global_beside_one_that_is_stored(wrap):
    global SCALE, LAST
    SCALE, LAST = 1.0, None
    task = Task()

    @wrap
    def step(x, y):
        global LAST
        LAST = task.update(task.loss(x, y) * SCALE).detach()
        return LAST

    def call(i):
        global SCALE
        SCALE = 1.0 if i < 4 else 2.0
        return step(*batch(i))

    return call, lambda: (task, LAST)


AVERAGES = SimpleNamespace()


def average(x):
    AVERAGES.count += 1
    AVERAGES.mean = 0.9 * AVERAGES.mean + x.mean(0)
    return AVERAGES.other.update(AVERAGES.other.loss(x, x.argmax(1) % 3)).detach()


@pytest.mark.parametrize("catches", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_helper_that_no_first_call_has_run(compiled, catches):
    def build(wrap):
        task, helper = Task(), wrap(average) if compiled else average
        AVERAGES.__dict__.update(count=0, mean=torch.zeros(5), other=Task(torch.optim.Adam))

        @wrap
        def step(x, y, late):
            loss = task.loss(x, y)
            if late:
                with contextlib.suppress(Exception if catches else ()):
                    loss = loss + helper(x)
            return task.update(loss)

        def call(i):
            if i == 3:
                helper(batch(i)[0])
            return step(*batch(i), i > 0)

        return call, lambda: (task, vars(AVERAGES))

    compiles(programs=1)(build)()


class Tee:
    """A stream that scripts put in the place of the standard one."""

    def __init__(self, stream):
        self.stream, self.quiet = stream, True

    def write(self, text):
        return self.stream.write(text)

    def flush(self):
        self.stream.flush()


TEE = Tee(sys.stdout)


def note():
    if not TEE.quiet:
        TEE.write("not quiet")


def test_a_stream_writes_after_a_capture_that_reached_it(monkeypatch):
    task = Task()
    monkeypatch.setattr(TEE, "stream", sys.stdout)
    monkeypatch.setattr(sys, "stdout", TEE)

    @abele.compile
    def step(x, y, late):
        loss = task.update(task.loss(x, y))
        if late:
            note()
        return loss

    for i in range(4):
        step(*batch(i), i > 0)
        print("a line")
    assert {*vars(TEE)} == {"stream", "quiet"}
    assert step.eager is None


@pytest.mark.parametrize("earlier", [0, 2])
def test_a_compiled_function_calls_another_one(earlier):
    def build(wrap):
        task, other, kept = Task(), Task(torch.optim.Adam), SimpleNamespace(scale=2)
        kept.mean = torch.zeros(5)

        @wrap
        def inner(x, y):
            kept.mean = 0.9 * kept.mean + x.mean(0)
            return other.update(other.loss(x, y) * kept.scale).detach()

        @wrap
        def outer(x, y):
            return task.update(task.loss(x, y) + inner(x, y))

        def call(i):
            kept.scale = 2 + (i > 2)
            return [inner(*batch(i)) for _ in range(earlier * (not i))], outer(*batch(i))

        return call, lambda: (task, other, kept)

    compiles(programs=2 + earlier // 2)(build)()


@compiles(programs=2, calls=6)
def test_an_equal_tensor_replaces_a_counter(wrap):
    task, held = Task(), type("Held", (), {})()
    held.count = torch.zeros(1)

    @wrap
    def step(x, y):
        held.count.add_(1)
        return task.update(task.loss(x, y))

    def call(i):
        if i == 3:
            held.count = held.count.clone()
        return step(*batch(i))

    return call, lambda: (task, held.count)


@pytest.mark.parametrize("where", ["function", "helper"])
def test_warnings_that_are_shown(where):
    def build(wrap):
        model, told = Task().model, []

        def helper(x):
            warnings.warn("careful", DeprecationWarning, stacklevel=1)
            return model(x).detach()

        @wrap
        def step(x):
            if where == "function":
                warnings.warn("careful", DeprecationWarning, stacklevel=1)
                return model(x).detach()
            return helper(x)

        def call(i):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = step(batch(i)[0])
            told.append([each.category for each in caught].count(DeprecationWarning))
            for each in caught:
                if each.category is not DeprecationWarning:
                    warnings.warn(each.message, stacklevel=1)
            return result

        return call, lambda: told

    refused = stays_eager(match="prints, logs, warns or writes")
    (compiles(programs=1) if where == "function" else refused)(build)()


def append(path, loss):
    with path.open("a") as file:
        file.write(f"{loss.item():.4f}")


HELPERS = {
    "print": (lambda out, path, loss: print(f"{loss.item():.4f}", file=out), None),
    "number": (lambda out, path, loss: out.write(f"{loss.item():.4f}"), None),
    "text": (lambda out, path, loss: out.write("a"), None),
    "seek": (
        lambda out, path, loss: out.seek(out.tell() + 1),
        "out from 'its content' to 'another'",
    ),
    "standard output": (lambda out, path, loss: sys.stdout.write("a"), None),
    "file": (lambda out, path, loss: append(path, loss), None),
}


@pytest.mark.parametrize("what", HELPERS)
def test_helpers_that_write_to_streams_and_files(what, tmp_path):
    log, refused = HELPERS[what]

    def build(wrap):
        task, out, shown, path = Task(), io.StringIO(), io.StringIO(), tmp_path / wrap.__name__
        path.touch()

        @wrap
        def step(x, y):
            loss = task.update(task.loss(x, y))
            log(out, path, loss)
            return loss

        def call(i):
            with contextlib.redirect_stdout(shown):
                return step(*batch(i))

        return call, lambda: (task, out.getvalue(), shown.getvalue(), path.read_text())

    (stays_eager(match=refused, calls=20) if refused else compiles(programs=1, calls=20))(build)()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_streams_that_a_helper_reads_keep_what_follows(where, tmp_path):
    streams, lines = contextlib.ExitStack(), "".join(f"{i}\n" for i in range(9))

    def build(wrap):
        task, path = Task(), tmp_path / wrap.__name__
        path.write_text(lines)
        stream = io.StringIO(lines) if where == "memory" else path.open("r+")
        streams.enter_context(stream)

        def weight():
            return float(stream.readline())

        @wrap
        def step(x, y):
            return task.update(weight() * task.loss(x, y))

        def content():
            return stream.getvalue() if where == "memory" else path.read_text()

        return lambda i: step(*batch(i)), lambda: (task, stream.tell(), content())

    with streams:
        stays_eager(match="stream from 'its content' to 'another'")(build)()


@stays_eager(match="sets attribute 'tag' of a tensor that it is given, returns or keeps", calls=20)
def test_attributes_of_a_result(wrap):
    task = Task()

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        loss.tag = "cross entropy"
        return loss

    return lambda i: step(*batch(i)).tag, lambda: task


@compiles(programs=1)
def test_containers_of_the_caller_inside_of_a_result(wrap):
    task = Task()

    @wrap
    def step(data):
        return {"data": data, "list": [data, 1], "loss": task.update(task.loss(*data.values()))}

    def call(i):
        data = dict(zip("xy", batch(i), strict=True))
        result = step(data)
        return result["loss"], result["data"] is data, result["list"][0] is data

    return call, lambda: task


@stays_eager(match="A list in its arguments grows: 6 values in this call", programs=3, calls=9)
def test_a_list_that_grows_at_each_call(wrap):
    task, losses = Task(), []

    @wrap
    def step(x, y, losses):
        losses.append(task.update(task.loss(x, y)).item())

    return lambda i: step(*batch(i), losses), lambda: (task, losses)


@compiles(programs=2, calls=6)
def test_masks_and_indices_of_the_state_select(wrap):
    task, mask, edges = Task(), torch.arange(80) % 3 > 0, torch.arange(80).view(2, 40) % 7

    @wrap
    def step(x, y):
        out = task.model(x)[edges[0][edges[0] != edges[1]]]
        return task.update(out.square().sum() + F.cross_entropy(task.model(x)[mask], y[mask]))

    def call(i):
        mask[5] = i < 4
        return step(*batch(i, 80))

    return call, lambda: task


@stays_eager(match="uses attribute 'n' of a compiled function")
def test_attributes_of_the_function_itself(wrap):
    global counted
    task = Task()

    def counted(x, y):
        counted.n = getattr(counted, "n", 0) + 1
        print(counted.__name__)
        return task.update(task.loss(x, y)).item()

    counted = wrap(counted)
    return lambda i: counted(*batch(i)), lambda: (task, counted.n)


@stays_eager(match=r"changes objects of Python \(put\.results")
def test_a_queue_that_a_helper_fills(wrap):
    task, results = Task(), queue.Queue()

    def put(loss):
        results.put(loss.detach())

    @wrap
    def step(x, y):
        put(task.update(task.loss(x, y)))

    return lambda i: step(*batch(i)), lambda: (task, [*results.queue])


def doubled(value):
    return 2 * value


doubled.__module__ = None  # as of what torch.compile returns for some functions


@compiles(programs=1)
def test_a_helper_that_belongs_to_no_module(wrap):
    task = Task()
    step = wrap(lambda x, y: task.update(doubled(task.loss(x, y))))
    return lambda i: step(*batch(i)), lambda: task
