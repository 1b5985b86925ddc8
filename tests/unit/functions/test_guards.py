"""Each kind of value of Python that a program depends on is compared at each call."""

import re
import sys
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


class Settings:
    number = 1


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


def class_attribute():
    return lambda: Settings.number, lambda value: setattr(Settings, "number", value)


def attribute():
    config = SimpleNamespace(model=SimpleNamespace(number=1))
    return lambda: config.model.number, lambda value: setattr(config.model, "number", value)


def attribute_of_its_class():
    class Config:
        number = 1

    config = Config()
    return lambda: config.number, lambda value: setattr(Config, "number", value)


def nested_dictionary():
    config = {"model": {"number": 1}}
    return lambda: config["model"]["number"], lambda value: config["model"].update(number=value)


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


def list_item():
    numbers = [0, 1]
    return lambda: numbers[1], lambda value: numbers.__setitem__(1, value)


def array_element():
    numbers = np.ones(2, int)
    return lambda: int(numbers[1]), lambda value: numbers.__setitem__(1, value)


def tuple_in_a_list():
    numbers = [(0, 1)]
    return lambda: numbers[0][1], lambda value: numbers.__setitem__(0, (0, value))


KINDS = {
    each.__name__: (each, text)
    for each, text in [
        (module_attribute, r"number was 1 and is 2"),
        (global_variable, r"NUMBER was 1 and is 2"),
        (closure_cell, r"number was 1 and is 2"),
        (class_attribute, r"Settings\.number was 1 and is 2"),
        (attribute, r"config\.model\.number was 1 and is 2"),
        (attribute_of_its_class, r"config\.number was 1 and is 2"),
        (names_of_several_helpers, r"config\.model\.number was 1 and is 2"),
        (function_of_torch, r"nn\.functional\.relu was <function relu .* and is <built-in .* tanh"),
        (
            name_of_a_function_of_torch,
            r"config\.act was <built-in .* relu.* and is <built-in .* tanh",
        ),
        (nested_dictionary, r"the contents of config\['model'\] have changed"),
        (list_item, "the contents of numbers have changed"),
        (array_element, "the contents of numbers have changed"),
        (tuple_in_a_list, "the contents of numbers have changed"),
    ]
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
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))


CHANGES = {
    "mode": lambda model: model.eval(),
    "number": lambda model: setattr(model[1], "p", 0.25),
    "part": lambda model: model.__setitem__(1, torch.nn.ReLU()),
    "parameter": lambda model: setattr(model[0], "bias", torch.nn.Parameter(torch.ones(2))),
    "no parameter": lambda model: setattr(model[0], "bias", None),
    "new attribute": lambda model: setattr(model, "scale", 2),
    "deleted part": lambda model: model.__delitem__(1),
    "hook": lambda model: model.register_forward_hook(lambda *_: None),
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
