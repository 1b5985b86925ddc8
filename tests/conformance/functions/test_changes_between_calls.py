"""What changes between calls of a compiled function: values of Python, modules, optimizers."""

import builtins
import copy
import dataclasses
import functools
import logging
import operator
import os
import sys
from collections import UserList
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import prune

from helpers.compiled_functions import Task, batch, compiles, same_as_plain, stays_eager


def doubled(value):
    return value * 2


def tripled(value):
    return value * 3


def scaled_by(wrap, scale, change, *state):
    """A case of a step whose loss is scaled by a value that changes before the third call."""
    task = Task()

    @wrap
    def step(x, y):
        return task.update(task.loss(x, y) * scale())

    def call(i):
        if i == 3:
            change()
        return step(*batch(i))

    return call, lambda: (task, *state)


@compiles(programs=2)
def test_a_function_in_a_variable(wrap):
    task, helper = Task(), doubled

    @wrap
    def step(x, y):
        return task.update(helper(task.loss(x, y)))

    def call(i):
        nonlocal helper
        helper = doubled if i < 3 else tripled
        return step(*batch(i))

    return call, lambda: task


@compiles(programs=2)
def test_another_tensor_in_a_variable(wrap):
    task, weight = Task(), torch.ones(3)

    @wrap
    def step(x, y):
        return task.update(F.cross_entropy(task.model(x), y, weight=weight))

    def call(i):
        nonlocal weight
        if i == 2:
            weight = torch.tensor([1.0, 2.0, 3.0])
        if i == 3:
            weight.mul_(2)  # in place: the same program
        if i == 4:
            weight = weight.clone()
        return step(*batch(i))

    return call, lambda: task


class Delegating:
    """Has the attributes of another object, and one of its own without a name outside."""

    __slots__ = ("__own", "inner")

    def __init__(self, inner):
        self.inner, self.__own = inner, 1.0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def own(self):
        return self.__own

    def double(self):
        self.__own *= 2


@dataclasses.dataclass
class Config:
    scale: float = 1.0


def scale_of(config):
    return config.scale


def changes():
    """Pairs of what reads a number and what doubles it, by what the number is."""

    def keyword(*, scale=1.0):
        return scale

    @functools.singledispatch
    def dispatched(value):
        return 1.0

    def imported():
        from abele_test import scale

        return scale

    def caught():
        try:
            return box.later
        except AttributeError:
            return 1.0

    def sets(owner, name="scale", value=2.0):
        return functools.partial(setattr, owner, name, value)

    class Base:
        def __call__(self):
            return 1.0

    class Kind(Base):
        def __call__(self):
            return super().__call__()

    class Number(float):
        scale = 1.0

    config, number, kind, pair, parts = Config(), Number(1.0), Kind(), Config(), ("sca", "le")
    box = SimpleNamespace(scale=1.0, pair=(1.0, [1.0]), top=SimpleNamespace(a=config))
    array, listed, values = np.ones((), np.float32), UserList([1.0]), {"a": 1.0}
    normal, logger = torch.distributions.Normal(1.0, 1.0), logging.getLogger("abele.test")
    view, own = values.values(), Delegating(box)
    logger.setLevel(logging.INFO)
    modules = ModuleType("abele_test"), ModuleType("abele_test")
    modules[0].scale, modules[1].scale, builtins.abele_test = 1.0, 2.0, 1.0
    sys.modules["abele_test"] = modules[0]
    return {
        "far below": (lambda: box.top.a.scale, sets(config)),
        "an array": (lambda: torch.from_numpy(array), lambda: array.fill(2.0)),
        "beside a tuple": (lambda: box.pair[1][0], lambda: box.pair[1].insert(0, 2.0)),
        "in vars": (lambda: len(vars(box)) / 3, sets(box, "another")),
        "by name": (lambda: getattr(box, "scale"), sets(box)),  # noqa: B009
        "by default": (lambda: getattr(box, "later", 1.0), sets(box, "later")),
        "by a computed name": (lambda: getattr(box, "".join(parts)), sets(box)),
        "in a copy": (lambda: scale_of(copy.copy(box)), sets(box)),
        "replaced": (lambda: scale_of(dataclasses.replace(pair)), sets(pair)),
        "if it is there": (lambda: 1.0 + hasattr(box, "later"), sets(box, "later")),
        "after an error": (caught, sets(box, "later")),
        "of another object": (lambda: own.scale, sets(box)),
        "in a private slot": (own.own, own.double),
        "of a dataclass": (lambda: dataclasses.astuple(config)[0], sets(config)),
        "a default": (keyword, lambda: keyword.__kwdefaults__.update(scale=2.0)),
        "in a list": (lambda: listed[0], lambda: listed.insert(0, 2.0)),
        "by type": (lambda: dispatched(1), lambda: dispatched.register(int, lambda _: 2.0)),
        "of a distribution": (lambda: normal.mean, sets(normal, "loc")),
        "in a view": (lambda: sum(view), lambda: values.update(b=1.0)),
        "of a number": (lambda: number.scale, sets(number)),
        "a level": (lambda: 1 + logger.isEnabledFor(20), sets(logger, "level", logging.ERROR)),
        "a builtin": (lambda: abele_test, sets(builtins, "abele_test")),  # noqa: F821
        "an import": (imported, lambda: sys.modules.update(abele_test=modules[1])),
        "of a call": (lambda: kind(), sets(Kind, "__call__", lambda _: 2.0)),
        "of a base": (lambda: kind(), sets(Base, "__call__", lambda _: 2.0)),
    }


@pytest.mark.parametrize("name", changes())
def test_numbers_that_code_does_not_name(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "abele_test", None)
    monkeypatch.setattr(builtins, "abele_test", None, raising=False)
    (made,) = same_as_plain(lambda wrap: scaled_by(wrap, *changes()[name]))
    assert len(made.programs) == 2


@compiles(programs=2)
def test_a_default_of_an_argument(wrap):
    task, default = Task(), [1.0]

    @wrap
    def step(x, y, scale=default):
        return task.update(task.loss(x, y) * scale[0])

    def call(i):
        default[0] = 1.0 if i < 3 else 2.0
        return step(*batch(i))

    return call, lambda: task


@compiles(programs=2)
def test_zeros_of_both_signs_and_nan(wrap):
    config = SimpleNamespace(scale=0.0)

    @wrap
    def scaled(x):
        return x * config.scale

    def call(i):
        config.scale = [0.0, 0.0, -0.0, 0.0, 1.0][i]
        return scaled(torch.ones(2))

    return call, list


def trained(wrap, task, change):
    """A case of a plain step, before whose calls something changes."""

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    def call(i):
        change(i)
        return step(*batch(i))

    return call, lambda: task


def doubles(*values):
    return values[-1] * 2


# What changes before call i of a step with Adam.
CHANGES = {
    "the mode": lambda i, model, _: model.train(i % 2 == 0),
    "a number of a module": lambda i, model, _: setattr(model[2], "p", 0.3 if i < 3 else 0.6),
    "a module": lambda i, model, _: i == 3 and model.__setitem__(1, nn.Tanh()),
    "frozen": lambda i, model, _: model[0].weight.requires_grad_(i in (0, 1, 3)),
    "in place": lambda i, model, _: i == 3 and model.load_state_dict(seeded().state_dict()),
    "data": lambda i, model, _: i == 3 and setattr(model[0].bias, "data", torch.ones(3)),
    "pruned": lambda i, model, _: i == 3 and prune.l1_unstructured(model[0], "weight", 0.3),
    "a hook of a module": lambda i, model, _: i == 3 and model.register_forward_hook(doubles),
    "of a gradient": lambda i, model, _: i == 3 and model[0].weight.register_hook(doubles),
    "the rate": lambda i, _, adam: adam.param_groups[0].update(lr=1e-3 * (i + 1)),
    "a list": lambda i, _, adam: (
        adam.param_groups[0]["betas"].__setitem__(0, 0.9 - 0.1 * (i > 2))
        if i
        else adam.param_groups[0].update(betas=[0.9, 0.99])
    ),
    "a slot": lambda i, _, adam: adam.param_groups[0].update(betas=(0.9, 0.99 - 0.01 * i)),
    "upwards": lambda i, _, adam: adam.param_groups[0].update(maximize=i > 2),
    "no parameter": lambda i, _, adam: i == 3 and adam.param_groups[0]["params"].pop(),
    "no state": lambda i, _, adam: i == 3 and adam.state.clear(),
    "a step": lambda i, _, adam: i == 3 and setattr(adam, "step", list),
    "a step and back": lambda i, _, adam: (
        vars(adam).pop("step", None) if i != 3 else setattr(adam, "step", list)
    ),
}


def seeded():
    return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout(0.3))


@pytest.mark.parametrize("name", CHANGES)
def test_a_step_follows(name):
    def build(wrap):
        task = Task(torch.optim.Adam, seeded())
        return trained(wrap, task, lambda i: CHANGES[name](i, task.model, task.optimizer))

    (made,) = same_as_plain(build, 6)
    programs = {"no parameter": 3, "in place": 1, "the rate": 1, "a slot": 1}
    assert len(made.programs) == programs.get(name, 2)


@compiles(programs=2)
def test_a_hook_of_all_modules(wrap):
    task, hooks = Task(), []

    def change(i):
        if i == 2:
            hooks.append(register_module_forward_hook(lambda m, a, out: out * 2))
        if i == 4:
            hooks.pop().remove()

    return trained(wrap, task, change)


@compiles(programs=2)
def test_another_optimizer(wrap):
    task = Task(torch.optim.Adam)

    def change(i):
        if i == 3:
            task.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)

    return trained(wrap, task, change)


@stays_eager(match="reads a clock or the environment")
def test_a_variable_of_the_environment(wrap):
    return scaled_by(wrap, lambda: float(os.environ.get("NO_SUCH_SCALE", "1")), lambda: None)


@compiles(programs=7, calls=10)
def test_parts_that_modules_get_without_setting_attributes(wrap):
    parts = nn.ModuleDict({"first": nn.Linear(5, 3)})
    rest, stages = nn.Sequential(), nn.ModuleList()
    changes = {
        3: lambda: parts.update({"first": nn.Linear(5, 3)}),
        4: lambda: rest.append(nn.Linear(3, 3)),
        5: lambda: rest.insert(0, nn.Tanh()),
        6: lambda: stages.append(nn.Linear(3, 3)),
        7: lambda: stages[0].register_parameter("bias", None),
        9: lambda: stages.pop(0),
    }

    @wrap
    @torch.no_grad()
    def run(x):
        x = rest(parts["first"](x))
        for stage in stages:
            x = stage(x)
        return x

    def call(i):
        changes.get(i, list)()
        return run(batch(i)[0])

    return call, list


@compiles(programs=2)
def test_a_class_gets_another_forward(wrap):
    class Layer(nn.Linear):
        pass

    def doubled(self, x):
        return 2 * nn.Linear.forward(self, x)

    task = Task(model=Layer(5, 3))
    return trained(wrap, task, lambda i: i == 3 and setattr(Layer, "forward", doubled))


@compiles(programs=2)
def test_buffers_take_another_type(wrap):
    scale = nn.Module()
    scale.register_buffer("value", torch.ones(3))
    return scaled_by(wrap, lambda: scale.value.sum().float(), lambda: scale.half() and None)


@compiles(programs=3)
def test_attributes_and_buffers_beside_one_that_each_call_replaces(wrap):
    model = nn.Linear(5, 3)
    model.register_buffer("mean", torch.zeros(3))
    model.register_buffer("shift", torch.ones(3))

    @wrap
    @torch.no_grad()
    def run(x):
        model.mean = 0.9 * model.mean + model(x).mean(0)
        return model.mean + model.shift

    def call(i):
        model.note = i // 3
        model.shift = model.shift if i < 4 else torch.zeros(3)
        return run(batch(i)[0])

    return call, lambda: model


@compiles(programs=4, calls=6)
def test_state_gets_another_layout_in_the_same_memory(wrap):
    state = torch.zeros(5, 5)

    def change(i):
        if i == 2:
            state.t_()
        elif i in (3, 4):
            state.data = state.data[:2] if i == 3 else state.data.unsqueeze(0)

    @wrap
    def run(x):
        return state.add_(x[0]) * 2

    def call(i):
        change(i)
        return run(batch(i)[0])

    return call, lambda: state


@stays_eager(match="momentum_buffer of torch.float32 for a parameter of torch.float64", programs=1)
def test_a_model_takes_another_type_than_the_state_of_its_optimizer(wrap):
    task = Task(lr=0.1, momentum=0.9)

    @wrap
    def step(x, y):
        return task.update(task.loss(x.to(task.model.weight.dtype), y))

    def call(i):
        if i == 3:
            task.model.double()
        return step(*batch(i))

    return call, lambda: task


@compiles(programs=2)
def test_the_model_takes_another_type(wrap):
    model = nn.Linear(5, 3)

    @wrap
    def run(x):
        with torch.no_grad():
            return model(x)

    def call(i):
        if i == 3:
            model.double()
        return run(batch(i)[0].to(model.weight.dtype))

    return call, lambda: model


@compiles(programs=2)
def test_a_group_is_added(wrap):
    task, more = Task(torch.optim.Adam), nn.Linear(5, 3)

    @wrap
    def step(x, y):
        return task.update(F.cross_entropy(task.model(x) + more(x), y))

    def call(i):
        if i == 3:
            task.optimizer.add_param_group({"params": more.parameters(), "lr": 0.1})
        return step(*batch(i))

    return call, lambda: (task, more)


@compiles(programs=2)
def test_the_state_of_the_optimizer_is_loaded(wrap):
    task, saved = Task(torch.optim.Adam), []

    def change(i):
        if i == 2:
            saved.append(copy.deepcopy(task.optimizer.state_dict()))
        if i == 4:
            task.optimizer.load_state_dict(saved[0])

    return trained(wrap, task, change)


@compiles(programs=2)
def test_the_default_type_of_numbers(wrap):
    model = nn.Linear(5, 3)

    @wrap
    def run(x):
        with torch.no_grad():
            return model(x) + torch.ones(3)

    def call(i):
        torch.set_default_dtype(torch.float64 if i % 2 else torch.float32)
        try:
            return run(batch(i)[0].float())
        finally:
            torch.set_default_dtype(torch.float32)

    return call, lambda: model


@compiles(programs=2)
def test_the_algorithm_of_attention(wrap):
    attend = wrap(lambda x: F.scaled_dot_product_attention(x, x, x))

    def call(i):
        kind = SDPBackend.FLASH_ATTENTION if i < 3 else SDPBackend.MATH
        with sdpa_kernel(kind):
            return attend(batch(i)[0].expand(2, 3, 4, 5).contiguous())

    return call, list


def test_a_file_that_changes_is_read_at_each_call(tmp_path):
    file = tmp_path / "scale"

    def build(wrap):
        run = wrap(lambda x: x * float(file.read_text()))
        return lambda i: [file.write_text(str(i)), run(torch.ones(2))], list

    assert same_as_plain(build)


@compiles(programs=2)
def test_another_backward_of_a_function(wrap):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    task = Task()
    task.update = lambda loss: Task.update(task, Doubled.apply(loss))
    other = staticmethod(lambda ctx, gradient: gradient * 3)
    call, _ = trained(wrap, task, lambda i: i == 3 and setattr(Doubled, "backward", other))
    return call, lambda: task.model


@compiles(programs=3)
def test_a_helper_of_another_file_that_runs_late_looks_for_an_attribute(wrap):
    task, config, module = Task(), SimpleNamespace(), ModuleType("other")
    exec("def scale(config): return getattr(config, 'scale', 1.0)", module.__dict__)

    @wrap
    def step(x, y, late):
        return task.update(task.loss(x, y) * (module.scale(config) if late else 1.0))

    def run(i):
        if i == 4:
            config.scale = 10.0
        return step(*batch(i), i > 1)

    return run, lambda: task


class Shape:
    __match_args__ = ("raw",)
    __slots__ = ("raw",)


def matched(shape):
    match shape:
        case Shape(value):
            return value


def matched_by_name(shape):
    match shape:
        case Shape(raw=value):
            return value


RAW, GET_RAW = "ra", operator.attrgetter("raw")
READS = [
    *(GET_RAW, lambda shape: GET_RAW(shape), lambda shape: sum(map(GET_RAW, [shape]))),
    *(matched, matched_by_name, lambda shape: operator.attrgetter(RAW + "w")(shape)),
    lambda shape: shape.__reduce_ex__(2),
    *(lambda shape: shape.__getattribute__(RAW + "w"), lambda shape: getattr(shape, RAW + "w")),
    lambda shape: object.__getattribute__(shape, RAW + "w"),
    lambda shape: sum(map(getattr, [shape], [RAW + "w"])),
]


@pytest.mark.parametrize("read", READS)
def test_an_attribute_that_is_read_by_a_computed_name(read):
    shape = Shape()
    shape.raw = 1.0

    def scale():
        value = read(shape)
        return value[2][1]["raw"] if isinstance(value, tuple) else value

    def build(wrap):
        shape.raw = 1.0
        return scaled_by(wrap, scale, lambda: setattr(shape, "raw", 3.0))

    compiles(programs=2)(build)()
