"""The ladder: eager = reference, bitwise; compiled ~ eager; loaded from the cache = compiled."""

import functools

import pytest
import torch

from abele import ExecutableCache, StepConfig
from abele.compilation.verdict import TOLERANCE
from conftest import TARGETS, usable
from helpers.models import MODELS
from helpers.runs import assert_close_by_norm, assert_same_bits, rule_for, run, run_eagerly, started

STEPS = 50
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.001),
}
TRAINED = [name for name in MODELS if name not in ("dense", "affine")]
ALWAYS = [("batch norm and dropout", "sgd"), ("embedding and layer norm", "adam")]
COMPILED = ALWAYS + [
    pytest.param(pair, marks=pytest.mark.thorough)
    for pair in [("introduction", "adam"), *((name, "sgd") for name in TRAINED)]
    if pair not in ALWAYS
]


@functools.cache
def eager(name, kind):
    module = MODELS[name].fresh()
    return run_eagerly(module, OPTIMIZERS[kind](module.parameters()), MODELS[name].batches(STEPS))


def step_once_more(name, kind, target, cache):
    """A session on fresh weights, and where its executable came from."""
    model = MODELS[name]
    module = model.fresh()
    session, record = started(
        module, model.batch(), rule_for(module, kind), target=target, cache=cache
    )
    return run(session, model.batches(STEPS)), record.cache


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return ExecutableCache(tmp_path_factory.mktemp("ladder"))


@pytest.fixture(scope="module", params=[each for each in TARGETS if each.values != ("reference",)])
def compiler(request):
    return usable(request.param)


@pytest.fixture(scope="module", params=COMPILED, ids=" by ".join)
def compiled(request, compiler, shared_cache):
    """Model, optimizer and what a freshly compiled executable makes of them."""
    trained, origin = step_once_more(*request.param, compiler, shared_cache)
    assert origin == ("miss" if compiler.cacheable else "off")
    return *request.param, trained


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", TRAINED)
def test_the_reference_is_eager_bit_by_bit(name, kind):
    trained, _ = step_once_more(name, kind, "reference", None)
    assert_same_bits(trained, eager(name, kind))


def test_compiled_is_close_to_eager(compiled, compiler):
    name, kind, trained = compiled
    if compiler.name == "cuda" and MODELS[name].random:
        pytest.skip("the GPU draws other random numbers than the CPU")
    without = MODELS[name].zero_gradients
    assert_close_by_norm(trained, eager(name, kind), TOLERANCE, without)


def test_loaded_from_the_cache_is_compiled_bit_by_bit(compiled, compiler, shared_cache):
    if not compiler.cacheable:
        pytest.skip(f"target {compiler.name} stores no executables")
    name, kind, trained = compiled
    loaded, origin = step_once_more(name, kind, compiler, shared_cache)
    assert origin == "hit"
    assert_same_bits(loaded, trained)


def test_compiled_accumulation_is_close_to_the_reference(compiler, shared_cache):
    model, config = MODELS["dense"], StepConfig(gradient_accumulation=2, replicas=2)
    trained = []
    for target, cache in (("reference", None), (compiler, shared_cache)):
        module = model.fresh()
        session, _ = started(
            module, model.batch(), rule_for(module), config, target=target, cache=cache
        )
        trained.append(run(session, model.batches(10, rows=16)))
    assert_close_by_norm(*trained, TOLERANCE)


@pytest.mark.parametrize("name", TRAINED)
def test_every_trainable_parameter_moves(name):
    before = dict(MODELS[name].fresh().named_parameters())
    after = eager(name, "sgd").params
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert moved == {key for key, value in before.items() if value.requires_grad}
