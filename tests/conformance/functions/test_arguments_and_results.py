"""Arguments and results of compiled functions: containers, aliases, and what a caller may write."""

import collections
import copy
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import abele
from abele import _torch
from abele.functions import decorator
from abele.functions.decorator import EagerWarning
from helpers.compiled_functions import Task, batch, compiles, stays_eager

Pair = collections.namedtuple("Pair", "first second")


class Doubling(torch.Tensor):
    """A tensor whose ``tanh`` is another one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.tanh else result


class Halving(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result / 2 if func is torch.Tensor.tanh else result


def counted(function, x):
    with FlopCounterMode(display=False) as counter:
        function(x)
    return counter.get_total_flops()


def halved(function, x):
    with Halving():
        return function(x)


OBSERVED = (
    counted,
    halved,
    lambda function, x: torch.func.vmap(function)(x),
    lambda function, x: torch.func.jvp(function, (x,), (x,)),
    lambda function, x: torch.func.jacrev(function)(x[0]),
    lambda function, x: len(_torch.make_fx(function)(x).graph.nodes),
)


def test_a_call_in_a_transform_says_once_that_it_is_plain():
    decorator._warn_of_observers.cache_clear()
    run, x = abele.compile(torch.tanh), torch.randn(2, 3)
    with pytest.warns(EagerWarning, match="inside a transform or mode that sees") as told:
        found = [torch.func.vmap(run)(x) for _ in range(2)]
    assert torch.equal(found[1], x.tanh())
    assert len(told) == 1


@compiles(programs=1, calls=2 + len(OBSERVED))
def test_calls_in_transforms_and_modes_are_plain(wrap):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        decorator._warn_of_observers()  # once in a process
    weight = torch.randn(5, 3)

    @wrap
    def run(x):
        return (x @ weight).tanh()

    def call(i):
        return run(batch(i)[0]), *([OBSERVED[i - 2](run, batch(i)[0])] if i > 1 else [])

    return call, list


@stays_eager(match="An argument is a Doubling, which may compute otherwise", programs=1)
def test_a_tensor_with_operators_of_its_own(wrap):
    run = wrap(torch.tanh)

    def call(i):
        x = batch(i)[0]
        return run(x if i < 3 else x.as_subclass(Doubling)).as_subclass(torch.Tensor)

    return call, list


@stays_eager(match="uses tensors on meta, which have no data", programs=1)
def test_tensors_without_data(wrap):
    @wrap
    def run(x):
        return x + torch.ones(5)

    def call(i):
        if i < 3:
            return run(batch(i)[0])
        with torch.device("meta"):  # the default of what the function creates, too
            return run(batch(i)[0].to("meta")).device.type

    return call, list


def without_training(wrap, compute):
    """A case of a function of a model's output."""
    model = nn.Linear(5, 3)

    @wrap
    def run(x):
        with torch.no_grad():
            return compute(model(x), x)

    return lambda i: run(batch(i)[0]), lambda: model


@compiles(programs=1)
def test_containers_of_results(wrap):
    def compute(out, x):
        ordered = collections.OrderedDict(least=out.min())
        listed = [out.sum(), {"most": (out.max(), None, "text", 1.5)}]
        return {"pair": Pair(out, 1), "listed": listed, "ordered": ordered}

    return without_training(wrap, compute)


@compiles(programs=1)
def test_shapes_types_and_named_results(wrap):
    return without_training(
        wrap, lambda out, x: (out.shape, out.dtype, out.numel(), torch.topk(out, 2), out.max(1))
    )


@compiles(programs=1)
def test_each_call_returns_containers_of_its_own(wrap):
    model = nn.Linear(5, 3)

    @wrap
    def run(x):
        with torch.no_grad():
            return {"names": ["a"], "out": model(x), "range": torch.arange(3)}

    def call(i):
        found = run(batch(i)[0])
        kept = copy.deepcopy(found)
        found["names"].append("b")
        found["range"].add_(1)
        return kept

    return call, lambda: model


@compiles(programs=1)
def test_results_of_earlier_calls_stay(wrap):
    task, kept = Task(), []

    @wrap
    def step(x, y):
        out = task.model(x)
        return task.update(F.cross_entropy(out, y)).detach(), out.detach()

    return lambda i: kept.append(step(*batch(i))), lambda: (task, kept)


@compiles(programs=1)
def test_gradients_that_the_caller_keeps_stay(wrap):
    model, kept = nn.Linear(5, 3), []

    @wrap
    def backward(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def call(i):
        model.zero_grad()
        loss = backward(*batch(i))
        kept.append([param.grad for param in model.parameters()])
        return loss

    return call, lambda: (model, kept)


@compiles(programs=1)
def test_an_argument_that_is_returned_is_the_same_object(wrap):
    @wrap
    def run(x):
        return x, x * 2

    def call(i):
        x, _ = batch(i)
        same, double = run(x)
        same.zero_()
        return same is x, x, double

    return call, list


@compiles(programs=1)
def test_an_argument_is_written(wrap):
    task = Task()

    @wrap
    def step(x, y):
        x.mul_(0.5)
        x[0] = 0
        return task.update(task.loss(x, y))

    def call(i):
        x, y = batch(i)
        return step(x, y), x

    return call, lambda: task


@compiles(programs=1)
def test_rows_of_outputs_by_their_numbers(wrap):
    task = Task()

    @wrap
    def step(x, y, index):
        return task.update(F.cross_entropy(task.model(x)[index], y))

    return lambda i: step(*batch(i), torch.randperm(4)), lambda: task


@compiles(programs=1)
def test_rows_of_a_buffer_are_written(wrap):
    buffer = torch.zeros(10, 5)

    @wrap
    def run(x):
        x.add_(1)
        return x.sum()

    return lambda i: run(buffer[i : i + 3]), lambda: buffer


@compiles(programs=2)
def test_arguments_in_other_layouts(wrap):
    @wrap
    def run(x):
        return (x * 2).sum(0)

    def call(i):
        wide = batch(i, rows=10)[0]
        return run(wide.t()[:, ::2] if i % 2 else wide[:5])

    return call, list


@compiles(programs=2)
def test_values_among_the_arguments(wrap):
    task = Task()

    @wrap
    def step(data, *, scale=1.0):
        return task.update(task.loss(data["x"], data["y"]) * scale)

    return lambda i: step(dict(zip("xy", batch(i), strict=True)), scale=1.0 + i // 3), lambda: task


@compiles(programs=1)
def test_a_number_that_nothing_computes_with_needs_no_more_programs(wrap):
    task, seen = Task(), []

    @wrap
    def step(x, y, index):
        loss = task.update(task.loss(x, y))
        seen.append((index, loss.item()))
        return loss

    return lambda i: step(*batch(i), i), lambda: (task, seen)


@compiles(programs=2)
def test_zeros_of_both_signs_as_arguments(wrap):
    @wrap
    def scaled(x, scale):
        return x * scale

    return lambda i: scaled(torch.ones(2), [0.0, 0.0, -0.0, 0.0, -0.0][i]), list


@compiles(programs=2)
def test_models_and_optimizers_as_arguments(wrap):
    tasks = [Task(torch.optim.Adam), Task(torch.optim.Adam)]

    @wrap
    def step(task, x, y):
        return task.update(task.loss(x, y))

    return lambda i: step(tasks[i // 2 % 2], *batch(i)), lambda: tasks


@compiles(programs=2)
def test_a_last_batch_without_rows(wrap):
    task = Task()

    @wrap
    def step(x, y):
        return task.update(F.cross_entropy(task.model(x), y, reduction="sum"))

    return lambda i: step(*batch(i, rows=0 if i == 3 else 4)), lambda: task


# -- what stays plain PyTorch ----------------------------------------


@stays_eager(match="changes a list or dictionary that it was given")
def test_a_result_is_put_into_the_batch(wrap):
    task = Task()

    @wrap
    def step(data):
        loss = task.update(task.loss(data["x"], data["y"]))
        data["loss"] = loss.detach()
        return loss

    def call(i):
        data = dict(zip("xy", batch(i), strict=True))
        return step(data), data

    return call, lambda: task


@compiles(programs=1)
def test_views_of_parameters_are_returned(wrap):
    task, kept = Task(), []

    @wrap
    def step(x, y):
        task.update(task.loss(x, y))
        return task.model.state_dict()

    def call(i):
        kept.append(step(*batch(i)))
        return dict(kept[-1])

    return call, lambda: (task, kept)


@stays_eager(match="returns or keeps a Linear with tensors that it has computed")
def test_a_model_that_was_made_inside_is_returned(wrap):
    @wrap
    def make(x, y):
        task = Task()
        task.update(task.loss(x, y))
        return task.model

    return lambda i: make(*batch(i)), list


@stays_eager(
    match="shares its memory with a tensor that the function reaches otherwise", programs=1
)
def test_an_argument_is_a_parameter_from_some_call_on(wrap):
    task = Task()

    @wrap
    def step(weight, x, y):
        return task.update(task.loss(x, y) + weight.square().sum()) + weight.sum()

    def call(i):
        weight = task.model.weight.detach()
        return step(weight if i > 2 else weight.clone(), *batch(i))

    return call, lambda: task


@stays_eager(match="writes to an argument that shares its memory with another one", programs=1)
def test_two_arguments_are_one_from_some_call_on(wrap):
    @wrap
    def run(x, z):
        x.add_(1)
        return (x * z).sum()

    def call(i):
        x, _ = batch(i)
        return run(x, x if i > 2 else x.clone()), x

    return call, list


@stays_eager(match="writes to an argument whose elements do not lie together")
def test_columns_are_written(wrap):
    buffer = torch.zeros(5, 10)

    @wrap
    def run(x):
        x.add_(1)
        return x.sum()

    return lambda i: run(buffer[:, i : i + 3]), lambda: buffer


@stays_eager(match="An argument requires a gradient")
def test_a_gradient_of_an_argument(wrap):
    model = nn.Linear(5, 3)

    @wrap
    def backward(x, y):
        F.cross_entropy(model(x), y).backward()

    def call(i):
        x, y = batch(i)
        backward(x.requires_grad_(), y)
        return x.grad

    return call, lambda: model


@stays_eager(match="has a gradient function from outside")
def test_an_argument_of_another_graph(wrap):
    task, before = Task(), nn.Linear(5, 5)

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    def call(i):
        x, y = batch(i)
        return step(before(x), y)

    return call, lambda: (task, [param.grad for param in before.parameters()])


@compiles(programs=2)
def test_a_hidden_state_of_the_call_before(wrap):
    layer = nn.LSTM(5, 4)
    task = Task(model=nn.Sequential(layer, nn.Linear(4, 3)))
    hidden = [(torch.zeros(1, 4, 4), torch.zeros(1, 4, 4))]

    @wrap
    def step(x, y, states):
        states = tuple(state.detach() for state in states)
        output, states = layer(x[None], states)
        return task.update(F.cross_entropy(task.model[1](output[0]), y)), states

    def call(i):
        loss, hidden[0] = step(*batch(i), hidden[0])
        return loss

    return call, lambda: task


@compiles(programs=1)
def test_one_tensor_is_returned_twice(wrap):
    model = nn.Linear(5, 3)

    @wrap
    def run(x):
        with torch.no_grad():
            out = model(x)
        return out, out[0]

    def call(i):
        out, row = run(batch(i)[0])
        out.zero_()
        return row

    return call, lambda: model


def test_a_target_that_was_asked_for_and_is_absent_is_an_error(monkeypatch):
    @abele.compile(cache=False)
    def double(x):
        return 2 * x

    x = torch.ones(3)
    double(x)
    monkeypatch.setenv("ABELE_TARGET", "no such target")
    with pytest.raises(abele.AbeleError, match="no such target"):
        double(x)
    monkeypatch.delenv("ABELE_TARGET")
    assert torch.equal(double(x), 2 * x)


@compiles(programs=1)
def test_views_of_an_argument_that_is_written(wrap):
    @wrap
    def step(x):
        before = x[1:]
        x.add_(1)
        return before, x.view(4, 5)

    def call(i):
        x = batch(i)[0]
        before, after = step(x)
        before.zero_()
        return x, after

    return call, lambda: None


@compiles(programs=1)
def test_conjugates_of_a_result(wrap):
    @wrap
    def step(x):
        z = torch.fft.fft(x)
        return z.abs(), z, z.conj()

    return lambda i: [each.resolve_conj() for each in step(batch(i)[0])], lambda: None


@stays_eager(match="shares its memory", programs=1)
def test_columns_of_the_state_as_an_argument(wrap):
    held = torch.zeros(4, 4)

    @wrap
    def step(x):
        held.add_(1)
        return x * 2

    return lambda i: step((held if i > 2 else torch.ones(4, 4))[:, ::2]), lambda: held


@compiles(programs=1)
def test_the_users_own_containers_are_returned(wrap):
    held = {"sum": torch.zeros(5)}

    @wrap
    def step(x, given):
        held["sum"] = held["sum"] + x.sum(0)
        return held, given, x * 2

    def call(i):
        given = ["name"]
        found = step(batch(i)[0], given)
        return found[0] is held, found[1] is given, found[2]

    return call, lambda: held


@compiles(programs=1)
def test_a_dictionary_with_one_tensor_is_the_only_argument(wrap):
    @wrap
    def step(given):
        return given["x"] * 2

    return lambda i: step({"x": batch(i)[0]}), lambda: None


@pytest.mark.parametrize("of_view", [False, True])
def test_the_layout_of_an_argument_with_gaps_decides(of_view):
    def build(wrap):
        task = Task()

        @wrap
        def step(x, y):
            x = x * 2 if (x[1:] if of_view else x).is_contiguous() else x
            return task.update(task.loss(x, y)), x.stride()

        def call(i):
            x, y = batch(i)
            return step(torch.cat([x, -x], 1)[:, ::2], y)

        return call, lambda: task

    refused = stays_eager(match="asks for the layout of a view, at ", calls=20)
    (refused if of_view else compiles(programs=1, calls=20))(build)()


@stays_eager(match="negated view", programs=1, target="cpu")
def test_a_negated_view_as_an_argument(wrap):
    step = wrap(lambda x: x * 2 + 1)
    return lambda i: step(torch._neg_view(torch.ones(3)) if i > 2 else torch.ones(3)), lambda: None


@pytest.mark.parametrize(
    ("rows", "programs"),
    [
        ((4, 4, 4, 3, 4, 3, 4), 1),  # the last batches of two epochs
        ((4, 4, 4, 3, 3), 2),
        ((4, 4, *(4, 3) * 9), 2),
    ],
)
def test_a_single_batch_of_another_shape_gets_no_program(rows, programs, monkeypatch):
    monkeypatch.delenv("ABELE_START")
    results = []
    for wrap in (lambda function: function, abele.compile(cache=False)):
        torch.manual_seed(0)
        task = Task(torch.optim.Adam)
        step = wrap(lambda *pair, task=task: task.update(task.loss(*pair)))
        results.append([step(*batch(i, count)) for i, count in enumerate(rows)])
    torch.testing.assert_close(*results)
    assert len(step.programs) == programs
