"""A plain function and its compiled version, from one seed, compared call by call.

A case builds what it needs and returns two functions: one makes call ``i``, the other returns all
objects that calls change.

    @compiles(programs=1)
    def test_a_step(wrap):
        task = Task()

        @wrap
        def step(x, y): ...

        return lambda i: step(*batch(i)), lambda: task
"""

import contextlib
import os
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import abele
from abele.containers import is_array
from abele.functions.decorator import EagerWarning, Function
from abele.targets import ENVIRONMENT

Build = Callable[[Callable[..., Any]], tuple[Callable[[int], Any], Callable[[], Any]]]
CALLS = 5


class Task:
    """A small classifier with its optimizer.

    Args:
        kind: of the optimizer.
        model: the classifier; a linear layer by default.
        options: of the optimizer.
    """

    def __init__(self, kind=torch.optim.SGD, model=None, **options):
        self.model = torch.nn.Linear(5, 3) if model is None else model
        options = {"lr": 0.1} if kind is torch.optim.SGD and not options else options
        self.optimizer = kind(self.model.parameters(), **options)

    def loss(self, x, y):
        return F.cross_entropy(self.model(x), y)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def in_two(task, wrap):
    """A function that adds the gradients of half a loss, and one that updates with them."""

    @wrap
    def add(x, y):
        loss = task.loss(x, y) / 2
        loss.backward()
        return loss

    @wrap
    def update():
        task.optimizer.step()
        task.optimizer.zero_grad()

    return add, update


def batch(seed: int, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 5, generator=generator)
    return features, torch.randint(0, 3, (rows,), generator=generator)


def compiles(*, programs: int = 1, calls: int = CALLS, target: str = "reference", **options):
    """Make a test of a case: the results are plain PyTorch's, by so many programs.

    Args:
        programs: how many there are after the last call, of all functions together.
        calls: how many are made.
        target: where the programs run; closely the same numbers, except on ``reference``.
        options: of ``abele.compile``.
    """

    def test_of(build: Build):
        def test():
            made = same_as_plain(build, calls, target, **options)
            assert all(each.eager is None for each in made), made
            assert sum(len(each.programs) for each in made) == programs, made
            assert all(each.calls for one in made for each in one.programs)

        return _named(test, build)

    return test_of


def stays_eager(*, match: str, programs: int = 0, calls: int = CALLS, **options):
    """Make a test of a case: the results are plain PyTorch's, for a function is not compiled.

    Args:
        match: a regular expression that is found in the reason.
        programs: how many there are of other functions.
        calls: how many are made.
        options: of ``abele.compile``.
    """

    def test_of(build: Build):
        def test():
            made = same_as_plain(build, calls, **options)
            reasons = [each.eager for each in made if each.eager is not None]
            assert len(reasons) == 1, made
            assert re.search(match, reasons[0]), reasons[0]
            assert sum(len(each.programs) for each in made) == programs, made

        return _named(test, build)

    return test_of


def same_as_plain(
    build: Build, calls: int = CALLS, target: str = "reference", **options: Any
) -> list[Function]:
    """Compare a compiled function with the plain one; return the functions that were called."""
    plain = _history(build, lambda function: function, calls)

    def wrap(function: Any) -> Any:
        return abele.compile(cache=False, start="wait", **options)(function)

    with (
        mock.patch.dict(os.environ, {ENVIRONMENT: target}),
        _functions() as functions,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always", EagerWarning)
        compiled = _history(build, wrap, calls)
    for call, (expected, found) in enumerate(zip(plain, compiled, strict=True)):
        for path in {**expected, **found}:
            pair = expected.get(path), found.get(path)
            assert _agree(*pair, exact=target == "reference"), (f"call {call}{path}", *pair)
    kinds = [each.category for each in told]
    assert kinds == [EagerWarning] * sum(each.eager is not None for each in functions)
    return [each for each in functions if each.programs or each.eager]


def _named(test: Callable[[], None], build: Build) -> Callable[[], None]:
    test.__name__ = build.__name__
    return test


@contextlib.contextmanager
def _functions() -> Iterator[list[Function]]:
    """Lists the compiled functions that are made in a ``with`` block, one per object of methods."""
    made: list[Function] = []
    original = Function.__init__

    def init(function: Function, *args: Any, **kwargs: Any) -> None:
        original(function, *args, **kwargs)
        made.append(function)

    with mock.patch.object(Function, "__init__", init):
        yield made


def _history(build: Build, wrap: Callable[..., Any], calls: int) -> list[dict[str, Any]]:
    """What each call returns and leaves, by path."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    call, state = build(wrap)
    result: list[dict[str, Any]] = []
    for index in range(calls):
        try:
            returned = call(index)
        except Exception as error:  # noqa: BLE001 - a call that fails has to fail in both
            returned = f"raised {_builtin(error)}"
        _, numbers, position, *_ = numpy.random.get_state()
        generators = hash((random.getstate(), numbers.tobytes(), position))  # of 1249 numbers
        outside = generators, torch.get_rng_state()
        modes = torch.is_grad_enabled(), torch.get_default_dtype()
        parts = {"returned": returned, "state": state(), "outside": outside, "modes": modes}
        result.append(dict(_parts(parts, "")))
    return result


def _builtin(error: Exception) -> str:
    """The name of an error's class in Python: errors of this project name more than torch's."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the tensors and plain values inside of an object, tensors as they are now."""
    if isinstance(value, torch.Tensor):
        if value.is_leaf and not path.startswith(".returned"):
            yield f"{path}.requires_grad", value.requires_grad
        yield path, value.detach().clone()
    elif is_array(value):
        yield path, torch.from_numpy(value.copy())
    elif isinstance(value, dict):
        yield f"{path}.keys", [*map(_key, value)]
        for key, part in value.items():
            yield from _parts(part, f"{path}.{_key(key)}")
    elif isinstance(value, list | tuple):
        yield f"{path}.type", (type(value).__name__, len(value))
        for index, part in enumerate(value):
            yield from _parts(part, f"{path}.{index}")
    elif isinstance(value, torch.nn.Module):
        yield f"{path}.training", [each.training for each in value.modules()]
        tensors = (*value.named_parameters(), *value.named_buffers())
        yield from _parts(dict(tensors), path)
    elif isinstance(value, torch.optim.Optimizer):
        groups = [{k: v for k, v in g.items() if k != "params"} for g in value.param_groups]
        yield from _parts([groups, [*value.state.values()]], path)
    elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        yield from _parts(value.state_dict(), path)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        yield f"{path}.type", type(value).__name__
        own = {key: each for key, each in vars(value).items() if not key.startswith("_abele_")}
        yield from _parts(own, path)
    else:
        yield path, repr(value)


def _key(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else str(value)


def _agree(expected: Any, found: Any, *, exact: bool) -> bool:
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        return type(expected) is type(found) and expected == found
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    if not exact and expected.is_floating_point():
        return torch.allclose(expected, found, rtol=1e-4, atol=1e-5, equal_nan=True)
    return _bytes(expected) == _bytes(found)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
