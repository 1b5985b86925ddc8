"""The vendor's package of graph networks, or a stand-in that makes its calls, over PopTorch."""

import copy
import importlib
import sys
from pathlib import Path

import pytest
import torch

import helpers
import poptorch
from helpers.wrapping import options, sgd
from poptorch._forward.running import _OverwriteContextManager
from poptorch._utils import combine_batch_tensors_gen

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


@pytest.fixture
def client(monkeypatch):
    """The stand-in, imported; nothing is left of it afterwards."""
    monkeypatch.syspath_prepend(Path(helpers.__path__[0]) / "graph_client")
    monkeypatch.setattr(_OverwriteContextManager, "_subsitution_manager_types", [])
    monkeypatch.delitem(sys.modules, "poptorch_geometric", raising=False)
    package = importlib.import_module("poptorch_geometric")
    yield package
    poptorch.registerCustomArgParser(package.Graphs, None)
    del sys.modules["poptorch_geometric"]


class Network(torch.nn.Module):
    """A graph convolution, and a regression of its sum over each graph."""

    def __init__(self, client):
        super().__init__()
        self.client = client
        self.near, self.out = torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)

    def forward(self, batch):
        source, target = batch.edges.t()
        x = self.near(batch.x).relu()
        x = x + torch.zeros_like(x).index_add(0, target, x[source])
        sums = self.client.sums_of_graphs(x, batch.graph, 2)
        return torch.nn.functional.mse_loss(self.out(sums), batch.target)

    def __deepcopy__(self, memo):
        other = Network(self.client)
        other.load_state_dict(self.state_dict())
        return other


def graphs(client, count=8):
    generator = torch.Generator().manual_seed(0)
    return [
        client.Graphs(
            torch.randn(4, 3, generator=generator),
            torch.randint(0, 4, (6, 2), generator=generator),
            torch.zeros(4, dtype=torch.int64),
            torch.randn(1, 1, generator=generator),
        )
        for _ in range(count)
    ]


def test_a_graph_network_trains_with_the_bits_of_plain_pytorch(client):
    torch.manual_seed(0)
    model = Network(client)
    plain, made = copy.deepcopy(model), options(deviceIterations=2)
    loader = client.DataLoader(graphs(client), 2, made)
    wrapped = poptorch.trainingModel(model, made, sgd(model))
    assert isinstance(loader, poptorch.DataLoader)
    batches = list(loader)
    assert [len(batch.x) for batch in batches] == [16, 16]
    for batch in batches:
        wrapped(batch)
    wrapped.copyWeightsToHost()
    optimizer, data = sgd(plain), graphs(client)
    for start in range(0, len(data), 2):
        optimizer.zero_grad()
        plain(client._joined(data[start : start + 2])).backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_substitutes_are_in_place_in_a_capture_alone(client):
    seen, usual = [], client.sums_of_graphs

    def forward(batch):
        seen.append(client.sums_of_graphs)
        if len(seen) == 2:
            raise ValueError("no")
        return client.sums_of_graphs(batch.x, batch.graph, 1)

    model = torch.nn.Module()
    model.forward = forward
    poptorch.inferenceModel(model, options())(graphs(client)[0])
    with pytest.raises(ValueError, match="no"):
        poptorch.inferenceModel(model, options())(graphs(client)[0])
    assert seen == [client._static_sums] * 2
    assert client.sums_of_graphs is usual


def test_registering_again_changes_nothing(client):
    client.register()
    assert _OverwriteContextManager._subsitution_manager_types == [client.Substitutes]
    executor = importlib.import_module("poptorch._poplar_executor")
    assert executor.PoplarExecutor is poptorch.PoplarExecutor
    with pytest.raises(poptorch.Error, match=r"takes a class with replace\(\) and restore\(\)"):
        _OverwriteContextManager.registerSubsitutionManager(dict)


def test_managers_that_were_opened_are_closed_if_a_later_one_fails(monkeypatch):
    events = []

    class First:
        def replace(self):
            events.append("replace")

        def restore(self):
            events.append("restore")

    class Broken(First):
        def replace(self):
            raise OSError("broken")

    monkeypatch.setattr(_OverwriteContextManager, "_subsitution_manager_types", [First, Broken])
    with pytest.raises(OSError, match="broken"), _OverwriteContextManager():
        pass
    assert events == ["replace", "restore", "restore"]


def test_tensors_of_batches_are_combined_one_by_one():
    batches = [[torch.ones(1, 2), torch.zeros(3)], [torch.full((2, 2), 5.0), torch.ones(1)]]
    first, second = combine_batch_tensors_gen(batches)
    assert torch.equal(first, torch.tensor([[1.0, 1.0], [5.0, 5.0], [5.0, 5.0]]))
    assert torch.equal(second, torch.tensor([0.0, 0.0, 0.0, 1.0]))
    with pytest.raises(ValueError, match="zip"):
        list(combine_batch_tensors_gen([[torch.ones(1)], []]))
