"""Products in slices: torch.matmul up to rounding, in the slices that were asked for."""

import pytest
import torch

import poptorch
from helpers.wrapping import inference
from poptorch import MatMulSerializationMode as Mode

SLICED = (Mode.InputChannels, Mode.ReducingDim, Mode.OutputChannels)


def operands(dtype=torch.float32, shapes=((8, 12), (12, 16))):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    "shapes", [((8, 12), (12, 16)), ((2, 8, 12), (12, 16)), ((3, 8, 12), (3, 12, 16))]
)
def test_slices_give_the_product_and_its_gradients(mode, shapes):
    lhs, rhs = (x.requires_grad_() for x in operands(shapes=shapes))
    sliced = poptorch.serializedMatMul(lhs, rhs, mode, 4)
    plain = torch.matmul(lhs, rhs)
    torch.testing.assert_close(sliced, plain)
    for actual, expected in zip(
        torch.autograd.grad(sliced.square().sum(), (lhs, rhs)),
        torch.autograd.grad(plain.square().sum(), (lhs, rhs)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mode", SLICED)
def test_a_wrapped_model_computes_the_same_slices(mode):
    lhs, rhs = operands()
    wrapped = inference(lambda x, y: poptorch.serializedMatMul(x, y, mode, 4))
    made = poptorch.serializedMatMul(lhs, rhs, mode, 4)
    assert torch.equal(wrapped(lhs, rhs), made)
    nodes = wrapped._executable.captured.programs[0].graph.graph.nodes
    products = [node for node in nodes if node.target is torch.ops.aten.mm.default]
    assert len(products) == 4


def test_disabled_and_a_factor_of_one_are_one_product():
    lhs, rhs = operands()
    plain = torch.matmul(lhs, rhs)
    assert torch.equal(poptorch.serializedMatMul(lhs, rhs, Mode.Disabled, 5), plain)
    for mode in SLICED:
        assert torch.equal(poptorch.serializedMatMul(lhs, rhs, mode), plain)
        assert torch.equal(poptorch.serializedMatMul(lhs, rhs, mode, 1), plain)


def test_kept_precision_rounds_partial_sums_once():
    lhs, rhs = operands(torch.float16, ((4, 64), (64, 4)))
    exact = lhs.double() @ rhs.double()
    kept = poptorch.serializedMatMul(lhs, rhs, Mode.ReducingDim, 32, keep_precision=True)
    rounded = poptorch.serializedMatMul(lhs, rhs, Mode.ReducingDim, 32)
    assert kept.dtype == rounded.dtype == torch.float16
    assert torch.equal(kept, exact.half())
    assert (rounded - exact).abs().max() > (kept - exact).abs().max()


@pytest.mark.parametrize("mode", [Mode.InputChannels, Mode.OutputChannels])
def test_kept_precision_reaches_gradients(mode):
    # The operand that every slice uses gets its gradient as a sum over slices.
    lhs, rhs = operands(torch.float16, ((64, 4), (4, 64)))
    whole = 1 if mode is Mode.InputChannels else 0
    errors = []
    for keep in (True, False):
        leaves = [lhs.clone().requires_grad_(), rhs.clone().requires_grad_()]
        poptorch.serializedMatMul(*leaves, mode, 32, keep).sum().backward()
        exact = (lhs.double().sum(0)[:, None].expand(4, 64), rhs.double().sum(1).expand(64, 4))
        errors.append((leaves[whole].grad - exact[1 - whole]).abs().max().item())
    assert errors[0] < errors[1]


def test_vectors_and_matrices():
    vector, matrix = operands(shapes=((12,), (12, 16)))
    for mode in (Mode.ReducingDim, Mode.OutputChannels):
        output = poptorch.serializedMatMul(vector, matrix, mode, 4)
        torch.testing.assert_close(output, vector @ matrix)
        with pytest.raises(poptorch.Error, match="slices a matrix, found an operand of shape"):
            poptorch.serializedMatMul(vector, vector, Mode.OutputChannels, 4)
    output = poptorch.serializedMatMul(matrix.T, vector, Mode.InputChannels, 4)
    torch.testing.assert_close(output, matrix.T @ vector)


@pytest.mark.parametrize(("mode", "size"), [*zip(SLICED, (8, 12, 16), strict=True)])
@pytest.mark.parametrize("factor", [5, -1])
def test_the_factor_divides_the_dimension(mode, size, factor):
    with pytest.raises(poptorch.Error, match=f"{size} cannot be cut into {factor}"):
        poptorch.serializedMatMul(*operands(), mode, factor)


@pytest.mark.parametrize(
    "arguments", [("output_channels", 4), (Mode.Disabled, 4.0), (Mode.Disabled, 4, 1)]
)
def test_types_are_checked(arguments):
    with pytest.raises(AssertionError, match=r"must be a"):
        poptorch.serializedMatMul(*operands(), *arguments)
