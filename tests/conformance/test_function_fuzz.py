"""Random training functions under ``abele.compile`` give the bits of plain PyTorch.

``ABELE_FUZZ=500`` tries that many instead of a few; ``ABELE_FUZZ_SEED=7`` one of them.
"""

import os
import pickle
import random
import warnings

import numpy
import pytest
import torch

import abele
from abele.functions.decorator import EagerWarning, Function
from helpers.random_functions import CALLS, source

COUNT = int(os.environ.get("ABELE_FUZZ", "6"))
ONE = os.environ.get("ABELE_FUZZ_SEED")
PIECE = 6
PIECES = [[int(ONE)]] if ONE else [range(i, i + PIECE) for i in range(0, COUNT, PIECE)]


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rows(call, sizes):
    """The batch of a call, the same one in both versions."""
    generator = torch.Generator().manual_seed(call)
    count = sizes[call]
    return torch.randn(count, 6, generator=generator), torch.randint(
        0, 4, (count,), generator=generator
    )


def parts(value, path=""):
    """The leaves of a nested value as comparable pairs: path, content."""
    if isinstance(value, torch.Tensor):
        content = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        yield path, (str(value.dtype), tuple(value.shape), content)
    elif isinstance(value, torch.nn.Module):
        yield from parts(dict(value.named_parameters(remove_duplicate=False)), path)
        yield from parts(dict(value.named_buffers(remove_duplicate=False)), path)
        modes = [each.training for each in value.modules()]
        yield f"{path}:", (modes, [each.requires_grad for each in value.parameters()])
    elif isinstance(value, torch.optim.Optimizer):
        yield from parts([dict(each, params=0) for each in value.param_groups], f"{path}.groups")
        yield from parts(list(value.state.values()), f"{path}.state")
    elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        yield from parts({k: v for k, v in value.state_dict().items() if k[0] != "_"}, path)
    elif isinstance(value, dict):
        yield f"{path}:", list(map(str, value))
        for key, part in value.items():
            yield from parts(part, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        yield f"{path}:", (type(value), len(value))
        for index, part in enumerate(value):
            yield from parts(part, f"{path}[{index}]")
    else:
        yield path, (type(value), repr(value))


def gradients(state, optimizers):
    """The gradients of all modules, and the tensors whose update may have used them."""
    found = {}
    for name, module in state.items():
        if isinstance(module, torch.nn.Module):
            found |= {f"{name}.{key}": each for key, each in module.named_parameters()}
    updated = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    return {key: (list(parts(each.grad)), id(each) in updated) for key, each in found.items()}


def calls(path, text, sizes, compiled_step, compiled):
    """Run a function's calls; yield what each left, and the gradients."""
    space = {"compiled_step": compiled_step, "compiled": compiled, "__name__": path.stem}
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    exec(compile(text, str(path), "exec"), space)
    before, step, evaluate, state = space["make"]()
    for call in range(CALLS):
        result = error = None
        try:
            before(call)
            result = step(*rows(call, sizes))
            if call % 3 == 2:
                result = (result, evaluate(*rows(call, sizes)))
        except (RuntimeError, ValueError, AssertionError, TypeError, IndexError) as raised:
            error = type(raised).__name__
        now = state()
        numbers = pickle.dumps(numpy.random.get_state(legacy=False))
        generators = torch.get_rng_state(), hash((random.getstate(), numbers))
        found = [*parts(result, "result"), *parts(now, "state"), *parts(generators, "random")]
        optimizers = [each for each in now.values() if isinstance(each, torch.optim.Optimizer)]
        yield [*found, ("error", error)], gradients(now, optimizers)


def check(seed, folder):
    """Compare one function's calls; return how many ran as programs, and its functions."""
    text, draw = source(seed), random.Random(seed)
    path = folder / f"function_{seed}.py"
    path.write_text(text)
    sizes = [draw.choice((4, 4, 4, 4, 3, 6)) for _ in range(CALLS)]
    keep = draw.random() < 0.2

    compiled = abele.compile(cache=False)
    compiled_step = abele.compile(cache=False, keep_gradients=keep)

    def plain(function):
        return function

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", EagerWarning)
        expected = list(calls(path, text, sizes, plain, plain))
        actual = calls(path, text, sizes, compiled_step, compiled)
        for call, ((left, grads), (right, own)) in enumerate(zip(expected, actual, strict=True)):
            for (place, value), (other, found) in zip(left, right, strict=False):
                if (place, value) != (other, found):
                    return f"call {call}: {place} is {value!r:.90}, found {other} {found!r:.90}"
            for name, (gradient, updated) in grads.items():
                if updated and not keep and own[name][0] == list(parts(None)):
                    continue
                if gradient != own[name][0]:
                    return f"call {call}: the gradient of {name} differs"
    told = [each for each in caught if issubclass(each.category, EagerWarning)]
    return "more than one warning" if len(told) > 2 else None


@pytest.mark.parametrize("seeds", PIECES, ids=lambda seeds: f"from {seeds[0]}")
def test_random_functions_agree_with_plain_pytorch(seeds, tmp_path, monkeypatch):
    ran = set()
    call = Function.__call__

    def counting(function, *args, **kwargs):
        result = call(function, *args, **kwargs)
        ran.update([seed] if function.programs else [])
        return result

    monkeypatch.setattr(Function, "__call__", counting)
    faults = {}
    for seed in seeds:
        problem = check(seed, tmp_path)
        if problem:
            faults[seed] = problem
    assert not faults, "\n".join(f"seed {seed}: {text}" for seed, text in faults.items())
    assert ONE or len(ran) > len(seeds) / 2
