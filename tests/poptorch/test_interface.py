"""Completeness: every public name of PopTorch 3.4, its parameters and defaults, exists here.

`interface.json` holds the facts. Options have their own test over `option_api.json`.
"""

import enum
import importlib
import inspect
import json
from pathlib import Path

import pytest
import torch

import poptorch
import poptorch.testing

API = json.loads(Path(__file__).with_name("interface.json").read_text())
MODULES = ("poptorch", "poptorch.optim", "poptorch.profiling", "poptorch.testing")
# Parameters that torch's own constructors gained after the release that the facts describe, and
# what is ours: both come after, or by keyword.
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def written(parameter):
    """A parameter as interface.json writes it."""
    if parameter.kind in _VARIADIC:
        return ("*" if parameter.kind is parameter.VAR_POSITIONAL else "**") + parameter.name
    if parameter.default is parameter.empty:
        return parameter.name
    value = parameter.default
    text = f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)
    return f"{parameter.name}={text}"


def parameters(function):
    """Written parameters without self, and the names of those that are keyword-only."""
    entries = list(inspect.signature(function).parameters.values())
    return [p for p in entries if p.name != "self"]


def check(function, expected):
    """The facts' parameters come first, in their order; ours may follow, with defaults."""
    entries = parameters(function)
    wanted = [text for text in expected if text != "*"]
    here = [written(p) for p in entries]
    assert [text for text in here if text in wanted] == wanted, (function, here)
    extra = [p for p in entries if written(p) not in wanted]
    assert all(p.default is not p.empty or p.kind in _VARIADIC for p in extra), (function, extra)
    positional = [p for p in entries if p.kind is p.POSITIONAL_OR_KEYWORD]
    order = [written(p) for p in positional][: len(wanted)]
    named = [text for text in wanted if not text.startswith("*")]
    if "*" not in expected and not any(text.startswith("*") for text in wanted):
        assert order == named, function


@pytest.mark.parametrize("module", MODULES)
def test_every_name_exists_with_its_parameters_and_members(module):
    for name, facts in API[module].items():
        found = getattr(importlib.import_module(module), name)
        if facts["kind"] == "function":
            check(found, facts["parameters"])
        if facts.get("constructor"):
            check(found.__init__, facts["constructor"])
        if facts["kind"] == "enum":
            assert {member.name: member.value for member in found} == facts["members"]
        if facts["kind"] == "class":
            for member, expected in facts.get("members", {}).items():
                check_member(found, member, expected)


def check_member(cls, member, expected):
    """A member is a property, or a method with its parameters."""
    entry = inspect.getattr_static(cls, member)
    if expected == "property":
        assert isinstance(entry, property), (cls, member)
    elif not (member.startswith("__") and member.endswith("__")):
        check(getattr(cls, member), expected)


def test_a_module_wrapped_for_training_gains_its_methods():
    model = torch.nn.Linear(2, 2)
    wrapped = poptorch.trainingModel(model)
    assert type(model).__name__ == "PoptorchLinear"
    for name in API["dynamic"]["wrapped module"]:
        assert callable(getattr(model, name))
    assert wrapped.model is model


def test_names_that_never_existed_are_not_found():
    with pytest.raises(AttributeError, match="has no attribute 'Dataloader'"):
        _ = poptorch.Dataloader
