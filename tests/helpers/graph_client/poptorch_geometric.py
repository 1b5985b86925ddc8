"""A stand-in for the vendor's package of graph networks: the calls that it makes of PopTorch.

It finds ``poptorch._poplar_executor`` by its specification and executes it again by its loader,
derives its loader from ``poptorch.DataLoader`` by a metaclass, and combines batches by a private
function.
"""

import dataclasses
import importlib.util

import torch

import poptorch
from poptorch._utils import combine_batch_tensors_gen


@dataclasses.dataclass
class Graphs:
    """Some graphs in one: features of nodes, edges between them, and the graph of each node."""

    x: torch.Tensor
    edges: torch.Tensor
    graph: torch.Tensor
    target: torch.Tensor


class Parser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield from vars(struct).values()

    def reconstruct(self, original_structure, tensor_iterator):
        return Graphs(*(next(tensor_iterator) for _ in vars(original_structure)))


def sums_of_graphs(x, graph, count):
    """A function with a shape that depends on values."""
    return torch.stack([x[graph == each].sum(0) for each in range(int(graph.max()) + 1)])


def _static_sums(x, graph, count):
    return x.new_zeros(count, x.shape[1]).index_add(0, graph, x)


class Substitutes:
    def replace(self):
        self.usual = globals()["sums_of_graphs"]
        globals()["sums_of_graphs"] = _static_sums

    def restore(self):
        globals()["sums_of_graphs"] = self.usual


def _joined(graphs):
    """One batch: the nodes of each graph are numbered after those before."""
    size = len(graphs[0].x)
    return Graphs(
        torch.cat([each.x for each in graphs]),
        torch.cat([each.edges + size * i for i, each in enumerate(graphs)]),
        torch.arange(len(graphs)).repeat_interleave(size),
        torch.cat([each.target for each in graphs]),
    )


class Combined:
    def __init__(self, batch_size):
        self.batch_size = batch_size

    def __call__(self, graphs):
        starts = range(0, len(graphs), self.batch_size)
        batches = [_joined(graphs[start : start + self.batch_size]) for start in starts]
        tensors = [list(Parser().yieldTensors(each)) for each in batches]
        return Parser().reconstruct(batches[0], combine_batch_tensors_gen(tensors))


class LoaderMeta(type):
    def __call__(cls, *args, **kwargs):
        base = poptorch.DataLoader
        meta = type("Resolved", (type(cls), type(base)), {})
        return super(LoaderMeta, meta(cls.__name__, (cls, base), {})).__call__(*args, **kwargs)


class DataLoader(metaclass=LoaderMeta):
    def __init__(self, dataset, batch_size, options):
        super().__init__(
            options=options, dataset=dataset, batch_size=batch_size, collate_fn=Combined(batch_size)
        )


def register():
    loader = importlib.util.find_spec("poptorch._poplar_executor").loader
    executor = loader.load_module()
    executor._OverwriteContextManager.registerSubsitutionManager(Substitutes)


register()
poptorch.registerCustomArgParser(Graphs, Parser())
