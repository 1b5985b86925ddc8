"""Each kind of value of Python that a program depends on is compared at each call."""

import collections
import contextvars
import functools
import multiprocessing
import re
import sys
import threading
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from abele._torch.replaced import replaced
from abele.errors import CaptureError
from abele.functions.frames import Frames
from abele.functions.guards import Guards

NUMBER = 1
OTHER = types.ModuleType("a_module_of_the_user")
OTHER.number = 1


def guards(function, *, modules=(), tensors=(), optimizers=(), **left_out):
    """The guards of a function that has been called once."""
    frames = Frames(function.__code__)
    with frames.watching():
        function()
    return Guards(function, frames, modules, tensors, optimizers, **left_out)


def module_attribute():
    return lambda: OTHER.number, lambda value: setattr(OTHER, "number", value)


def global_variable():
    return lambda: NUMBER, lambda value: setattr(sys.modules[__name__], "NUMBER", value)


def closure_cell():
    number = 1

    def change(value):
        nonlocal number
        number = value

    return lambda: number, change


def default_of_an_argument():
    def read(number=1):
        return number

    defaults = {1: read.__defaults__, 2: (2,)}
    return read, lambda value: setattr(read, "__defaults__", defaults[value])


def module_imported_inside():
    sys.modules[OTHER.__name__] = OTHER

    def read():
        import a_module_of_the_user

        return a_module_of_the_user.number

    return read, lambda value: setattr(OTHER, "number", value)


def set_item(holder, value):
    holder[len(holder) - 1] = value


def set_number(holder, value):
    holder.number = value


def names_of_several_helpers():
    config = SimpleNamespace(model=SimpleNamespace(width=1, number=1))
    first, second = lambda: config.model.width, lambda: config.model.number
    return lambda: (first(), second()), lambda value: setattr(config.model, "number", value)


def function_of_torch():
    calls, space = {1: torch.nn.functional.relu, 2: torch.tanh}, torch.nn.functional
    return (
        lambda: torch.nn.functional.relu(torch.ones(1)),
        lambda value: setattr(space, "relu", calls[value]),
    )


def name_of_a_function_of_torch():
    config, calls = SimpleNamespace(act=torch.relu), {1: torch.relu, 2: torch.tanh}
    return lambda: config.act(torch.ones(1)), lambda value: setattr(config, "act", calls[value])


def of(holder, read, change, text="the contents of held have changed"):
    def kind():
        return lambda held=holder: read(held), lambda value: change(holder, value)

    return kind, text


class Settings:
    number = 1


LOCAL, PARTIAL = threading.local(), functools.partial(dict, number=1)
LOCAL.number = 1
CONTEXT = contextvars.ContextVar("number")
CONTEXT.set(1)
KINDS = {
    "attribute of its class": of(
        Settings(),
        lambda held: held.number,
        lambda held, new: set_number(Settings, new),
        r"held\.number was 1 and is 2",
    ),
    "helpers": (names_of_several_helpers, r"config\.model\.number was 1 and is 2"),
    "of torch": (
        function_of_torch,
        r"nn\.functional\.relu was <function relu .* and is <built-in .* tanh",
    ),
    "name": (
        name_of_a_function_of_torch,
        r"config\.act was <built-in .* relu.* and is <built-in .* tanh",
    ),
    "attribute of a module": (module_attribute, r"number was 1 and is 2"),
    "global": (global_variable, r"NUMBER was 1 and is 2"),
    "cell": (closure_cell, r"number was 1 and is 2"),
    "default": (default_of_an_argument, "a function other code"),
    "import": (module_imported_inside, r"number was 1 and is 2"),
    "list": of([0, 1], lambda held: held[1], set_item),
    "array": of(np.ones(2, int), lambda held: int(held[1]), set_item),
    "bytes": of(bytearray(b"\1\1"), lambda held: held[1], set_item),
    "tuple": of([(1, 1)], lambda held: held[0][1], lambda held, new: set_item(held, (1, new))),
    "sign": of([0.0], lambda held: held[0], lambda held, new: set_item(held, [0.0, -0.0][new - 1])),
    "attribute": of(
        SimpleNamespace(model=SimpleNamespace(number=1)),
        lambda held: held.model.number,
        lambda held, new: set_number(held.model, new),
        r"held\.model\.number was 1 and is 2",
    ),
    "dictionary": of(
        {"model": {"number": 1}},
        lambda held: held["model"]["number"],
        lambda held, new: held["model"].update(number=new),
        r"the contents of held\['model'\] have changed",
    ),
    "mapping": of(
        collections.UserDict(number=1),
        lambda held: held["number"],
        lambda held, new: held.update(number=new),
    ),
    "partial": of(PARTIAL, lambda held: held(), lambda held, new: held.keywords.update(number=new)),
    "thread": of(LOCAL, lambda held: held.number, set_number),
    "shared": of(
        multiprocessing.Value("i", 1),
        lambda held: held.value,
        lambda held, new: setattr(held, "value", new),
    ),
    "context": of(CONTEXT, lambda held: held.get(), lambda held, new: held.set(new)),
    "event": of(
        threading.Event(),
        lambda held: held.is_set(),
        lambda held, new: held.set() if new == 2 else held.clear(),
    ),
}


@pytest.mark.parametrize(("kind", "text"), KINDS.values(), ids=KINDS)
def test_a_changed_value_is_seen(kind, text):
    read, change = kind()
    kept = guards(read)
    assert kept.hold()
    assert kept.difference() is None
    change(2)
    holds, difference = kept.hold(), kept.difference()
    change(1)
    assert not holds
    assert re.search(text, difference)
    assert kept.hold()


@pytest.mark.parametrize(
    ("before", "after"),
    [(0.0, -0.0), (1, True), (1, 1.0), ("a", "b"), (None, 0), (torch.float32, torch.float64)],
)
def test_equal_values_of_other_kinds_differ(before, after):
    value = before
    kept = guards(lambda: value)
    assert kept.hold()
    value = after
    assert not kept.hold()


def test_nan_is_the_same_as_itself():
    value = float("nan")
    assert guards(lambda: value).hold()


def test_what_hides_a_compared_attribute_is_seen():
    class Base:
        number = 1

    class Config(Base):
        pass

    config = Config()
    kept = guards(lambda: config.number)
    for holder in (Config, config):
        assert kept.hold()
        holder.number = 2
        assert not kept.hold()
        assert kept.difference() == "number has been set"
        del holder.number


def test_a_deleted_attribute_is_seen():
    config = SimpleNamespace(number=1)
    kept = guards(lambda: config.number)
    del config.number
    assert not kept.hold()


def test_what_the_host_changes_is_left_out():
    counts = SimpleNamespace(number=1, other=1)
    kept = guards(lambda: (counts.number, counts.other), left_out=frozenset({"number"}))
    counts.number = 2
    assert kept.hold()
    counts.other = 2
    assert not kept.hold()


def test_entries_that_calls_store_are_left_out():
    box = {"loss": None, "number": 1}
    kept = guards(lambda: box["loss"], stored=frozenset({(id(box), "loss")}))
    box["loss"] = torch.ones(1)
    assert kept.hold()
    box["number"] = 2
    assert not kept.hold()


def test_long_lists_are_refused():
    numbers = [0] * 5000
    with pytest.raises(CaptureError, match=r"reaches numbers, which has 5000 values.*at most 4096"):
        guards(lambda: numbers[0])


@pytest.fixture
def model():
    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    made.handle = made[0].register_forward_hook(lambda *_: None)
    return made


def exchange(model):
    model.handle.remove()
    model[0].register_forward_hook(lambda *_: None)


CHANGES = {
    "mode": lambda model: model.eval(),
    "number": lambda model: setattr(model[1], "p", 0.25),
    "part": lambda model: model.__setitem__(1, torch.nn.ReLU()),
    "parameter": lambda model: setattr(model[0], "bias", torch.nn.Parameter(torch.ones(2))),
    "no parameter": lambda model: setattr(model[0], "bias", None),
    "new attribute": lambda model: setattr(model, "scale", 2),
    "deleted part": lambda model: model.__delitem__(1),
    "hook": lambda model: model.register_forward_hook(lambda *_: None),
    "another hook": exchange,
    "hook before": lambda model: model[0].register_forward_pre_hook(lambda *_: None),
    "hook of backward": lambda model: model[0].register_full_backward_hook(lambda *_: None),
    "hook of a gradient": lambda model: model[0].weight.register_hook(lambda grad: None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_module_is_seen(model, change):
    kept = guards(lambda: model(torch.ones(2)), modules=[model], tensors=[*model.parameters()])
    assert kept.hold()
    assert kept.difference() is None
    change(model)
    assert not kept.hold()
    assert kept.difference() is not None


def test_a_module_that_changes_back_is_the_same(model):
    kept = guards(lambda: model(torch.ones(2)), modules=[model])
    model.eval()
    assert kept.difference() == "training of a Sequential has changed"
    assert not kept.hold()
    model.train()
    assert kept.hold()


def test_hooks_of_all_modules_and_of_steps_are_seen(model):
    optimizer = torch.optim.SGD(model.parameters())
    kept = guards(lambda: model(torch.ones(2)), modules=[model], optimizers=[optimizer])
    for register in (register_module_forward_pre_hook, optimizer.register_step_post_hook):
        assert kept.hold()
        handle = register(lambda *_: None)
        assert not kept.hold()
        assert kept.difference() == "a hook has been added or removed"
        handle.remove()
    assert kept.hold()


def test_other_modules_may_change(model):
    kept = guards(lambda: model(torch.ones(2)), modules=[model])
    torch.nn.Linear(1, 1).eval().register_forward_hook(lambda *_: None)
    assert kept.hold()


def test_a_capture_of_another_thread_is_no_change(model):
    optimizer = torch.optim.SGD(model.parameters())
    kept = guards(lambda: torch.autograd.backward, modules=[model], optimizers=[optimizer])

    def traced(original, *args):
        return original(*args)

    traced.__module__ = "abele.functions.capture"
    backward = torch.autograd, "backward", traced
    with replaced(backward), replaced(backward):
        for register in (register_module_forward_pre_hook, optimizer.register_step_pre_hook):
            handle = register(traced)
            assert kept.hold()
            handle.remove()
