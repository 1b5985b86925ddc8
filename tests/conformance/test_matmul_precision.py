"""Float32 GEMMs with bfloat16 factors: plain PyTorch's with the same rounding, bit by bit."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import abele
import poptorch
from abele import StepConfig, passes
from abele.compilation.cache import ExecutableCache
from abele.ops import half_products
from abele.passes import rounded_products
from abele.step.config import MatmulPrecision
from helpers.runs import assert_same_bits, captured, rule_for, run, run_eagerly, started
from helpers.wrapping import options, rows, scorer, sgd

MEDIUM = StepConfig(matmul_precision=MatmulPrecision.MEDIUM)
aten = torch.ops.aten


class RoundedFactors(TorchDispatchMode):
    """While open, torch rounds the factors of GEMMs to bfloat16, and computes in their type."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Compute one operator."""
        if func in rounded_products._GEMMS:
            args = (*args[:-2], *(each.bfloat16().to(each.dtype) for each in args[-2:]))
        return func(*args, **(kwargs or {}))


class Attending(nn.Module):
    """Dense layers, of which one has an odd inner dimension, and products of batches."""

    def __init__(self):
        super().__init__()
        self.into, self.odd, self.out = nn.Linear(20, 48), nn.Linear(33, 8), nn.Linear(16, 33)

    def forward(self, x, wanted):
        q, k, v = self.into(x).unflatten(2, (3, 16)).unbind(2)
        seen = (q @ k.mT / 4).softmax(-1) @ v
        return F.mse_loss(self.odd(F.gelu(self.out(seen))), wanted)


def model(dtype=torch.float32):
    torch.manual_seed(7)
    return Attending().to(dtype)


def batch(dtype=torch.float32):
    g = torch.Generator().manual_seed(5)
    sizes = (4, 26, 20), (4, 26, 8)
    return [torch.randn(*size, generator=g).to(dtype) for size in sizes]


@pytest.fixture(autouse=True)
def has_products(monkeypatch):
    """Whatever the processor has, products of any size have bfloat16 factors."""
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(rounded_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(rounded_products, "_LEAST_FMAS", 1)
    monkeypatch.setattr(rounded_products, "_LEAST_REUSE", 0)


def eagerly(dtype=torch.float32):
    module = model(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    return run_eagerly(module, optimizer, [batch(dtype)] * 4)


def ours(target, cache=None):
    rule = rule_for(model(), "sgd", lr=0.5, momentum=0.0)
    session, record = started(model(), batch(), rule, MEDIUM, target=target, cache=cache)
    return run(session, [batch()] * 4), record


def rounded_eagerly():
    """Plain PyTorch, with the products that have an even inner dimension in bfloat16."""

    class Even(RoundedFactors):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in rounded_products._GEMMS and args[-2].shape[-1] % 2:
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Even():
        return eagerly()


def test_the_reference_is_plain_pytorch_with_rounded_factors_bit_by_bit():
    assert_same_bits(ours("reference")[0], rounded_eagerly())


def distance(trained, exact):
    values = [trained.params[name].double() - value for name, value in exact.params.items()]
    return torch.cat([each.flatten() for each in values]).norm()


def test_errors_are_those_of_rounded_factors(target):
    exact = eagerly(torch.float64)
    results, record = ours(target)
    rounded = distance(rounded_eagerly(), exact)
    assert distance(results, exact) <= 1.1 * rounded
    assert rounded > 100 * distance(eagerly(), exact)
    if target.name == "cpu":
        why = record.lowerings["step"].reason
        assert "products in bfloat16" in why, why


def test_code_from_the_cache_has_the_bits_of_code_just_compiled(target, tmp_path):
    if target.name == "reference":
        pytest.skip("the reference compiles nothing")
    made, loaded = (ours(target, ExecutableCache(tmp_path)) for _ in range(2))
    assert (made[1].cache, loaded[1].cache) == ("miss", "hit")
    assert_same_bits(loaded[0], made[0])


def test_programs_stay_as_they_are_where_rounding_does_not_pay(monkeypatch):
    program = passes.run(captured(model(), batch(), rule=rule_for(model())).programs[0])
    assert rounded_products.rounded_products(program) is not program
    monkeypatch.setattr(rounded_products, "_LEAST_REUSE", 64)
    assert rounded_products.rounded_products(program) is program
    monkeypatch.setattr(rounded_products, "_LEAST_REUSE", 0)
    monkeypatch.setattr(rounded_products, "has_bfloat16_products", lambda: False)
    assert rounded_products.rounded_products(program) is program


def test_a_factor_is_rounded_once_for_all_products():
    program = passes.run(captured(model(), batch(), rule=rule_for(model())).programs[0])
    after = rounded_products.rounded_products(program).verify()
    casts = [
        node.all_input_nodes[0]
        for node in after.graph.graph.nodes
        if node.target is aten._to_copy.default and node.meta["val"].dtype is torch.bfloat16
    ]
    assert len(casts) == len(set(casts))
    rounds = list(map(rounded_products.has_rounded_factors, after.graph.graph.nodes))
    assert sum(rounds) == 12


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_option_of_a_wrapper(precision):
    module, plain = scorer(), scorer()
    made = options(matmulPrecision=precision)
    poptorch.trainingModel(module, made, sgd(module))(*rows(8))
    optimizer = sgd(plain)
    with RoundedFactors() if precision == "medium" else torch.enable_grad():
        plain(*rows(8))[0].backward()
    optimizer.step()
    even = plain.fc.weight, module.fc.weight
    torch.testing.assert_close(*even, rtol=0, atol=0)


def test_another_precision_is_refused():
    with pytest.raises(AssertionError, match="takes one of highest, high, medium, not 'low'"):
        poptorch.Options().Precision.matmulPrecision("low")


def test_compiled_functions_follow_torchs_setting():
    layer, x = nn.Linear(16, 8), torch.randn(6, 16)

    @abele.compile(cache=False, start="interpret")
    def scores(x):
        with torch.no_grad():
            return layer(x)

    results = {}
    try:
        for precision in ("highest", "medium") * 3:
            torch.set_float32_matmul_precision(precision)
            results.setdefault(precision, []).append(scores(x))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(results["highest"][-1], layer(x))
    with RoundedFactors():
        assert torch.equal(results["medium"][-1], layer(x))
    assert not torch.equal(results["medium"][-1], results["highest"][-1])
