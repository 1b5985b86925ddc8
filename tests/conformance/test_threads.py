"""Compiled code runs with other numbers of threads than it was compiled for."""

import pytest
import torch

from abele import ExecutableCache, StepConfig
from abele.kernels import threads as limits
from conftest import usable
from helpers.models import MODELS
from helpers.runs import rule_for, run, started

DENSE = MODELS["dense"]


@pytest.mark.compiler
def test_what_happens_once_is_done_by_one_thread(threads, tmp_path):
    """Adam counts its steps; without marks in the code each thread would count them."""
    module, cache = DENSE.fresh(), ExecutableCache(tmp_path)
    for number in (1, 4):
        threads(number)
        session, record = started(
            module,
            DENSE.batch(),
            rule_for(module, "adam"),
            StepConfig(),
            target=usable("cpu"),
            cache=cache,
        )
        run(session, DENSE.batches(20))
    assert record.cache == "hit"
    counts = {n: v.item() for n, v in session.optimizer_state.items() if n.endswith("step")}
    assert set(counts.values()) == {20.0}


def parameters(name, rows, cache=None):
    """Parameters after two updates."""
    model = MODELS[name]
    module = model.fresh()
    given = rule_for(module, "sgd"), StepConfig()
    session, _ = started(module, model.batch(rows), *given, target=usable("cpu"), cache=cache)
    torch.manual_seed(1)
    run(session, model.batches(2, rows=rows))
    return session.params


def assert_alike(results):
    for each in results[1:]:
        assert all(torch.equal(each[key], value) for key, value in results[0].items())


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["introduction", "batch norm and dropout"])
def test_fewer_usable_threads_give_the_same_bits(name, threads):
    results = []
    threads(4)
    try:
        for most in (limits.ALL, 1, 3):
            limits.limit(most)
            results.append(parameters(name, 64))
    finally:
        limits.limit(limits.ALL)
    assert_alike(results)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "rows"), [("introduction", 16), ("embedding and layer norm", 512), ("dense", 4096)]
)
def test_more_threads_than_cores_give_the_bits_of_one(name, rows, threads, tmp_path):
    results = []
    for count in (1, 2, 3, 5, 16):
        threads(count)
        results.append(parameters(name, rows, ExecutableCache(tmp_path)))
    assert_alike(results)
