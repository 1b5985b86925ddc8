"""Hooks around compilation: their order, their handles, and what happens when capture fails."""

import pytest

import poptorch
from helpers.wrapping import inference, rows

REGISTER = [poptorch.registerPreCompileHook, poptorch.registerPostCompileHook]
X = rows(2)[0]


@pytest.fixture
def seen():
    """Names of what ran, with two hooks of each kind registered."""
    names = []
    handles = [
        register(lambda name=name: names.append(name))
        for register, kind in zip(REGISTER, ("pre", "post"), strict=True)
        for name in (f"{kind} 1", f"{kind} 2")
    ]
    yield names
    for handle in handles:
        handle.remove()


def test_hooks_after_capture_run_even_if_it_fails(seen):
    with pytest.raises(ZeroDivisionError):
        inference(lambda x: x / (1 // 0))(X)
    assert seen == ["pre 1", "pre 2", "post 1", "post 2"]


@pytest.mark.parametrize("register", REGISTER)
def test_hooks_must_be_callable(register):
    with pytest.raises(RuntimeError, match="must be callable"):
        register("not a function")
