"""Operators of graph libraries, captured as torch's own, beside those element by element."""

import importlib

import pytest
import torch

import poptorch
from helpers import graph_operators
from helpers.wrapping import options, sgd

graph_operators.define()
scatter, cluster = torch.ops.torch_scatter, torch.ops.torch_cluster
spline = torch.ops.torch_spline_conv

INDEX = torch.tensor([2, 0, 2, 5, 0, 2])  # group 1, 3 and 4 are empty, the last is alone
POINTERS = torch.tensor([0, 2, 2, 5, 6])


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


class Model(torch.nn.Module):
    """One operator between parameters and a loss."""

    def __init__(self, function, shape):
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(3)
        values = torch.randint(-3, 4, shape, generator=generator).float()  # some are equal
        self.values = torch.nn.Parameter(values + 0.25)

    def forward(self, x, index):
        results = self.function(self.values, index)
        first, *others = results if isinstance(results, tuple | list) else [results]
        return poptorch.identity_loss((first * first * x).sum(), "none"), first, *others


def check(function, shape, index):
    """Train two steps and compare with plain PyTorch, which runs the stand-ins."""
    model, plain = Model(function, shape), Model(function, shape)
    x, optimizer = torch.tensor([0.5]), sgd(plain)
    wrapped = poptorch.trainingModel(model, options(), sgd(model))
    for _ in range(2):
        optimizer.zero_grad()
        expected = plain(x, index)
        expected[0].backward()
        optimizer.step()
        for ours, theirs in zip(wrapped(x, index), expected, strict=True):
            assert torch.allclose(ours.double(), theirs.double(), rtol=1e-6, atol=1e-6)
    wrapped.copyWeightsToHost()
    assert torch.allclose(model.values, plain.values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (6, 3), (2, 6), (2, 6, 2)])
@pytest.mark.parametrize("name", ["scatter_max", "scatter_min", "scatter_mul"])
def test_scatters(name, shape):
    dim = 0 if shape[0] == 6 else 1
    check(lambda v, i: getattr(scatter, name)(v, i, dim, None, 7), shape, INDEX)


@pytest.mark.parametrize("name", ["scatter_max", "scatter_min", "scatter_mul"])
def test_scatters_into_a_tensor(name):
    def function(values, index):
        out = torch.full((2, 7), 0.5)
        result = getattr(scatter, name)(values, index.expand(2, 6), -1, out, None)
        return result, out

    def first(values, index):
        result, out = function(values, index)
        return (result[0] if isinstance(result, tuple) else result), out

    check(first, (2, 6), INDEX)


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_segments(reduce, shape):
    operator = getattr(scatter, f"segment_{reduce}_csr")
    check(lambda v, p: operator(v, p, None), shape, POINTERS)


def test_segments_of_rows_with_pointers_of_their_own():
    pointers = torch.tensor([[1, 2, 5], [0, 4, 6]])  # of the first row, two elements are outside
    for reduce in ("sum", "max"):
        operator = getattr(scatter, f"segment_{reduce}_csr")
        check(lambda v, p, f=operator: f(v, p, None), (2, 6, 2), pointers)
        check(lambda v, p, f=operator: f(v, p, torch.ones(2, 2, 2)), (2, 6, 2), pointers)


def test_values_are_gathered_for_segments():
    check(lambda v, p: scatter.gather_csr(v, p, torch.zeros(8, 3)), (4, 3), POINTERS)
    check(lambda v, p: scatter.gather_csr(v, torch.tensor([0, 2, 2, 5, 6]), None), (4, 3), POINTERS)


@pytest.mark.parametrize("bounds", [(None, None), ((-1.0, -2.0), (4.0, 9.0))])
def test_points_fall_into_voxels(bounds):
    points, size = torch.tensor([[0.0, 0.5], [3.9, 2.0], [1.0, 8.1], [2.0, 2.0]]), [1.5, 2.5]
    start, end = (None if each is None else torch.tensor(each) for each in bounds)

    def function(values, points):
        return values[cluster.grid(points, torch.tensor(size), start, end) % 6]

    check(function, (6,), points)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_splines(degree):
    edges = torch.tensor([[0.0, 0.3], [0.99, 0.5], [0.41, 0.77]])
    sizes, is_open = torch.tensor([5, 4]), torch.tensor([1, 0], dtype=torch.uint8)

    def function(values, edges):
        basis, index = spline.spline_basis(edges * 1.0, sizes, is_open, degree)
        x = values[:3, 0, :2]
        return spline.spline_weighting(x, values, basis, index), basis, index

    check(function, (20, 2, 3), edges)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda v, i: scatter.scatter_max(v, i, 0, None, None),
            r"scatter_max without dim_size, at",
        ),
        (lambda v, i: scatter.gather_csr(v, i, None), r"gather_csr without out, at .*Pass out"),
        (
            lambda v, i: scatter.segment_max_coo(v, i, None),
            r"calls torch_scatter\.segment_max_coo at .*py:.*register_fake",
        ),
    ],
)
def test_what_depends_on_values_is_refused(function, message):
    model = Model(function, (6,))
    with pytest.raises(poptorch.Error, match=message):
        poptorch.trainingModel(model, options(), sgd(model))(torch.ones(1), INDEX)


SCRIPTED = """
from typing import Tuple
import torch

@torch.jit.script
def spline_basis(pseudo: torch.Tensor, kernel_size: torch.Tensor, is_open_spline: torch.Tensor,
                 degree: int) -> Tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.torch_spline_conv.spline_basis(pseudo, kernel_size, is_open_spline, degree)

def largest(values, index):
    return torch.ops.torch_scatter.scatter_max(values, index, 0, None, None)
"""


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_functions_of_the_library_are_captured(tmp_path, monkeypatch):
    package = tmp_path / "torch_spline_conv"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "basis.py").write_text(SCRIPTED)
    monkeypatch.syspath_prepend(tmp_path)
    basis = importlib.import_module("torch_spline_conv.basis")
    sizes, is_open = torch.tensor([5, 4]), torch.tensor([1, 0], dtype=torch.uint8)
    check(lambda v, i: basis.spline_basis(v.sigmoid(), sizes, is_open, 2), (3, 2), INDEX)
    model = Model(lambda v, i: basis.largest(v, i), (6,))
    with pytest.raises(poptorch.Error, match=r"at .*test_graph_operators\.py.*basis\.largest"):
        poptorch.trainingModel(model, options(), sgd(model))(torch.ones(1), INDEX)
