"""What is replaced on GPUs, with kernels of processors in place of theirs."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from abele.passes.of_lowerings.gpu import BACKWARD, FORWARD, gpu_attention, gpu_biases, gpu_norms
from abele.targets.reference import Interpreter
from helpers.emitted_operators import program_of
from helpers.runs import captured, rule_for

aten = torch.ops.aten
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


class OfGpu(torch.fx.Interpreter):
    """Computes attention of GPUs by its formula, and looks at what it is given."""

    def call_function(self, target, args, kwargs):
        if target is EFFICIENT:
            q, k, v, bias, logs, dropout, causal = args
            assert (logs, dropout) == (True, 0.0)
            y = self._attention(q, k, v, bias, causal, kwargs["scale"])
            self.made = y
            return y, torch.zeros(q.shape[:-1]), torch.zeros(()), torch.zeros(())
        if target is EFFICIENT_BACKWARD:
            return self._backward(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def _attention(self, q, k, v, bias, causal, scale):
        assert q.shape[-1] % 8 == v.shape[-1] % 8 == 0
        if bias is not None:
            assert bias.shape == (*q.shape[:-1], k.shape[-2])
            assert bias.stride(-2) % 8 == bias.storage_offset() % 8 == 0
        return F.scaled_dot_product_attention(q, k, v, bias, 0.0, causal, scale=scale)

    def _backward(
        self, grad, q, k, v, bias, y, logs, seed, offset, dropout, wanted, causal, *, scale
    ):
        assert (dropout, wanted) == (0.0, [True, True, True, False])
        torch.testing.assert_close(y, self.made)
        given = [each.detach().requires_grad_() for each in (q, k, v)]
        with torch.enable_grad():
            again = self._attention(*given, bias, causal, scale)
        return *torch.autograd.grad(again, given, grad), None


@pytest.mark.parametrize("size", [5, 8])
@pytest.mark.parametrize("how", ["plain", "causal", "mask", "scale"])
def test_attention_is_that_of_gpus(size, how):
    mask = torch.randn(6, 11).masked_fill(torch.rand(6, 11) < 0.3, -math.inf)
    mask[:, 0] = 0
    options = {"causal": {"is_causal": True}, "mask": {"attn_mask": mask}, "scale": {"scale": 0.3}}

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options.get(how, {}))

    inputs = [torch.randn(2, 3, rows, size) for rows in (6, 11, 11)]
    program = program_of(function, inputs, gradients=True)
    assert {FORWARD, BACKWARD} <= {node.target for node in program.graph.graph.nodes}
    moved = gpu_attention(program)
    targets = [node.target for node in moved.graph.graph.nodes]
    assert (targets.count(EFFICIENT), targets.count(EFFICIENT_BACKWARD)) == (1, 1)
    assert not {FORWARD, BACKWARD}.intersection(targets)
    assert not moved.uses_random  # though torch says so of the operator
    expected = Interpreter().compile(program).run(list(inputs))
    torch.testing.assert_close(list(OfGpu(moved.graph).run(*inputs)), expected)


def test_programs_without_attention_stay_as_they_are():
    program = program_of(lambda x: x + 1, (torch.ones(2),), gradients=False)
    assert gpu_attention(program) is program
    assert gpu_norms(program) is program
    assert gpu_biases(program) is program


class HalfWithWideNorms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8).half()
        self.norm, self.groups = torch.nn.LayerNorm(8), torch.nn.GroupNorm(2, 8)

    def forward(self, x, target):
        y = self.layer(x)
        return F.mse_loss((self.norm(y) + self.groups(y)).float(), target)


def test_norms_of_two_types_are_computed_in_one():
    batch = torch.randn(4, 8).half(), torch.randn(4, 8)
    module = HalfWithWideNorms()
    program = captured(module, batch, rule=rule_for(module)).programs[0]
    widened = gpu_norms(program)
    widened.verify()
    for node in widened.graph.graph.nodes:
        if "norm" in str(node.target):
            assert {each.meta["val"].dtype for each in node.all_input_nodes} == {torch.float32}
    arguments = [torch.rand(slot.shape).to(slot.dtype) for slot in program.inputs]
    written = [[value.clone() for value in arguments] for _ in (0, 1)]
    results = [
        Interpreter().compile(each).run(list(given))
        for each, given in zip((program, widened), written, strict=True)
    ]
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(*written, rtol=2e-2, atol=2e-2)


PRODUCTS = {
    "of matrices": (torch.addmm, (torch.randn(5), torch.randn(4, 3), torch.randn(3, 5))),
    "of several": (
        torch.baddbmm,
        (torch.randn(2, 1, 5), torch.randn(2, 4, 3), torch.randn(2, 3, 5)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_biases_are_added_apart(name):
    function, inputs = PRODUCTS[name]
    program = program_of(function, inputs, gradients=True)
    apart = gpu_biases(program)
    apart.verify()
    assert not any("addbmm" in str(each) or "addmm" in str(each) for each in targets_of(apart))
    results = [Interpreter().compile(each).run(list(inputs)) for each in (program, apart)]
    torch.testing.assert_close(*results)


def test_products_with_factors_and_of_half_numbers_stay_together():
    def function(bias, a, b):
        scaled = torch.addmm(bias, a, b, beta=0.5)
        return scaled, torch.addmm(bias.half(), a.half(), b.half())

    program = program_of(function, PRODUCTS["of matrices"][1], gradients=False)
    assert targets_of(gpu_biases(program)).count(aten.addmm.default) == 2


def targets_of(program):
    return [node.target for node in program.graph.graph.nodes]


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_biases_of_convolutions_are_summed_apart(transposed):
    def function(x, weight, bias):
        convolve = F.conv_transpose2d if transposed else F.conv2d
        return convolve(x, weight, bias)

    inputs = torch.randn(2, 4, 7, 6), torch.randn(4, 4, 3, 3), torch.randn(4)
    program = program_of(function, inputs, gradients=True)
    apart = gpu_biases(program)
    apart.verify()
    (backward,) = (
        node for node in apart.graph.graph.nodes if node.target is aten.convolution_backward.default
    )
    assert backward.args[-1] == [True, True, False]
    assert targets_of(apart).count(aten.sum.dim_IntList) == 1
    results = [Interpreter().compile(each).run(list(inputs)) for each in (program, apart)]
    torch.testing.assert_close(*results)
