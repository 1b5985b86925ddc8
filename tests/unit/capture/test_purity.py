"""Purity: writes become new values, node by node, as functionalisation would have it."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import _torch
from abele.program import returned_nodes, writes
from abele.trace import tracer
from helpers.runs import rule_for, started

aten = torch.ops.aten


def relu_in_place(x, n):
    y = F.relu(x * 2, inplace=True)
    n.add_(1)
    return [y + 1, n * 3]


def written_again(x, n):
    n.mul_(2)
    y = n + x.sum()
    n.copy_(n + 1)
    return [y, n]


def read_under_its_old_name(x, n):
    m = n.add_(1)
    n.mul_(3)
    return [m * 1, n * 1]


def batch_norm_twice(x, n):
    mean, var = torch.zeros(3) * 1, torch.ones(3) * 1
    pictures = x.reshape(2, 3, 2)
    first = aten._native_batch_norm_legit(pictures, None, None, mean, var, True, 0.1, 1e-5)[0]
    second = aten._native_batch_norm_legit(first, None, None, mean, var, True, 0.1, 1e-5)[0]
    n.copy_(mean.sum())
    return [second, mean, var]


def batch_norm_of_halves(x, n):
    mean, var = torch.zeros(3).half() * 1, torch.ones(3).half() * 1
    pictures = x.reshape(2, 3, 2).half()
    first = aten._native_batch_norm_legit(pictures, None, None, mean, var, True, 0.1, 1e-5)[0]
    second = aten._native_batch_norm_legit(first, None, None, mean, var, True, 0.1, 1e-5)[0]
    n.copy_(mean.sum())
    return [second, mean, var]


def dropout_of_a_transposed(x, n):
    mask = torch.empty_like(x.t()).bernoulli_(1.0)
    return [(x.t() * mask * mask).sum(1, keepdim=True).clone()]


def view_of_the_new_value(x, n):
    y = (x * 1).mul_(2)
    return [y.view(12) + 1, y.t().clone()]


def turned_in_place(x, n):
    y = x * 2
    row, flat = y[0], y.sum(0)
    y.transpose_(0, 1)
    z = y.unsqueeze(0) * 3
    return [z.squeeze_() + 1, y @ x, row + 1, flat]


def residual_in_place(x, n):
    y = (x @ x.t()).view(2, 8)
    before = y.sum()
    y += 1
    z = y.view(4, 4) * 2
    y.mul_(3).relu_()
    return [y, z, before, y.t() + 1]


def gradient_of_such_a_write(x, n):
    copy = torch.empty_strided((4, 3), (3, 1)).copy_(x * 2)
    view = copy.view(2, 6)
    view.copy_(view.clone().mul_(3))
    return [copy.sum(0), copy.t() + n]


def input_of_another_shape(x, n):
    x.view(-1).mul_(2)
    n.unsqueeze(0).add_(1)
    return [x + n]


def reshaped_and_stale(x, n):
    y = x * 1
    other = y.view(6, 2)
    y.view(12).add_(1)
    return [other + 1]


def turned_and_written(x, n):
    y = x * 1
    y.t_()
    y.mul_(2)
    return [y]


def write_through_a_view(x, n):
    y = x * 1
    y[0].mul_(2)
    return [y]


def gradient_clipped(x, n):
    y = x * 2
    y.t().t().detach().mul_(n)
    return [y + 1, y.t().conj() * 1]


def averages_of_several(x, n):
    copies = [x * 1, n * 1]
    torch._foreach_lerp_([each.detach() for each in copies], [x + 1, n + 1], 0.5)
    return [copies[0].sum(0), copies[1]]


def written_in_another_order(x, n):
    y = x.unsqueeze(0) * 1
    y.transpose(0, -1).mul_(2)
    z = y.permute(2, 0, -2).add_(n)
    return [y, z * 1]


def written_in_slices(x, n):
    y = x * 1
    y[1:3].copy_(x[:2])
    y[:, -1] = n
    y[-1, 1:].mul_(3)
    x[2:].t().add_(1)
    return [y, y.sum(0)]


def drawn_in_place(x, n):
    return [torch.empty_like(x).bernoulli_().mul_(2), torch.empty_like(n).normal_(1)]


def through_a_conjugate(x, n):
    y = torch.complex(x, x)
    y.conj().mul_(1j)
    return [y]


def stale_view(x, n):
    y = x * 1
    row = y[0]
    y.mul_(2)
    return [row + 1]


def other_type(x, n):
    y = (x * 1).half()
    y.add_(x)
    return [y]


BY_NODES = [relu_in_place, written_again, read_under_its_old_name, batch_norm_twice]
BY_NODES += [dropout_of_a_transposed, view_of_the_new_value, turned_in_place]
RESHAPED = [residual_in_place, gradient_of_such_a_write, input_of_another_shape, gradient_clipped]
RESHAPED += [written_in_another_order, written_in_slices, write_through_a_view, turned_and_written]
RESHAPED += [drawn_in_place, averages_of_several]
CAST = [batch_norm_of_halves]
RETRACED = [through_a_conjugate, stale_view, other_type, reshaped_and_stale]


def _values():
    return [torch.arange(12.0).reshape(4, 3), torch.tensor(1.0)]


def _traced(function):
    with _torch.static_fakes() as mode:
        fakes = [mode.from_tensor(value) for value in _values()]
        return _torch.make_fx(function)(*fakes), fakes, mode


def _printed(graph):
    names = {node: f"n{index}" for index, node in enumerate(graph.graph.nodes)}
    printed = []
    for node in graph.graph.nodes:
        arguments = torch.fx.map_arg((node.args, node.kwargs), names.__getitem__)
        value = tracer._layout(node.meta.get("val"))
        printed.append(f"{node.op} {node.target} {arguments} {value}")
    return printed[2:]  # placeholders have names


@pytest.fixture
def retraced(monkeypatch):
    graphs = []
    original = tracer._retraced
    monkeypatch.setattr(tracer, "_retraced", lambda *a: graphs.append(1) or original(*a))
    return graphs


@pytest.mark.parametrize("function", BY_NODES + RESHAPED + CAST + RETRACED)
def test_it_computes_and_writes_what_the_function_does(function):
    traced, fakes, mode = _traced(function)
    with mode:
        graph = tracer.pure(traced, fakes)
    expected, actual = _values(), _values()
    torch.manual_seed(0)
    results = function(*expected)
    torch.manual_seed(0)
    for one, other in zip(results, graph(*actual), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(expected, actual, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("function", BY_NODES)
def test_it_is_the_graph_of_functionalisation_without_its_cost(function, retraced):
    traced, fakes, mode = _traced(function)
    with mode:
        reference = tracer._retraced(traced, fakes)
        reference.graph.eliminate_dead_code()
        del retraced[:]
        graph = tracer.pure(traced, fakes)
    assert not retraced
    assert _printed(graph) == _printed(reference)


@pytest.mark.parametrize("function", RESHAPED + CAST)
def test_writes_of_reshaped_or_wider_values_are_found_without_retracing(function, retraced):
    traced, fakes, mode = _traced(function)
    with mode:
        tracer.pure(traced, fakes)
    assert not retraced


@pytest.mark.parametrize("function", RETRACED)
def test_views_that_see_a_write_are_left_to_functionalisation(function, retraced):
    traced, fakes, mode = _traced(function)
    with mode:
        tracer.pure(traced, fakes)
    assert retraced


@pytest.mark.parametrize("function", BY_NODES + RESHAPED + CAST + RETRACED)
def test_only_final_copies_into_inputs_write(function):
    traced, fakes, mode = _traced(function)
    with mode:
        graph = tracer.pure(traced, fakes)
    nodes = [node for node in graph.graph.nodes if node.op != "output"]
    final = [node for node in nodes if writes(node)]
    assert nodes[len(nodes) - len(final) :] == final
    assert all(node.target is aten.copy_.default for node in final)
    assert all(node.args[0].op == "placeholder" for node in final)
    assert not set(final) & set(returned_nodes(graph))


def test_a_second_write_under_the_name_of_the_input_is_the_last():
    # As in updates whose nodes were copied: they write to the input, not to what was written first.
    traced, fakes, mode = _traced(written_again)
    copy = next(node for node in traced.graph.nodes if node.target is aten.copy_.default)
    slot = [node for node in traced.graph.nodes if node.op == "placeholder"][1]
    copy.replace_input_with(copy.args[0], slot)
    mul = next(node for node in traced.graph.nodes if node.target is aten.mul_.Tensor)
    mul.replace_all_uses_with(slot)
    with mode:
        graph = tracer.pure(traced, fakes)
    expected, actual = _values(), _values()
    written_again(*expected)
    graph(*actual)
    assert torch.equal(actual[1], expected[1])


@pytest.mark.parametrize("layer", [torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_are_not_traced_twice(layer, retraced):
    torch.manual_seed(0)
    module = layer(3, 4, num_layers=2, batch_first=True)
    sequences, wanted = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    model = Loss(module)
    session, _ = started(model, (sequences, wanted), rule_for(model))
    assert not retraced
    (loss,) = session.step((sequences, wanted))
    torch.testing.assert_close(loss, model(sequences, wanted), rtol=0, atol=0)


@pytest.mark.parametrize("activation", [torch.nn.SiLU, torch.nn.Mish])
def test_activations_made_of_others_beside_batch_norms_are_not_traced_twice(activation, retraced):
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4)
    model = Loss(torch.nn.Sequential(torch.nn.Linear(3, 4), norm, activation()), whole=True)
    inputs, wanted = torch.randn(8, 3), torch.randn(8, 4)
    session, _ = started(model, (inputs, wanted), rule_for(model))
    assert not retraced
    (loss,) = session.step((inputs, wanted))
    torch.testing.assert_close(loss, model(inputs, wanted), rtol=0, atol=0)


class Loss(torch.nn.Module):
    """Of the inner model's first result, or of all that it gives."""

    def __init__(self, inner, *, whole=False):
        super().__init__()
        self.inner = inner
        self.whole = whole

    def forward(self, sequences, wanted):
        result = self.inner(sequences)
        return F.mse_loss(result if self.whole else result[0], wanted)
