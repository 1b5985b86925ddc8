"""Writes what a file needs where its program runs in several processes of torch.distributed."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Thing
from abele.port.analysis.parts import StepError
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.rules.plain.settings import options_of, require_visible, settings
from abele.port.source import Source

_DEFAULTS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
_PARALLEL = '''def {name}(model):
    """The model; where there are several processes, with the mean of their gradients."""
    if not torch.distributed.is_initialized():
        return model
    # Each process keeps the buffers, such as averages of batch norm, of its own rows.
    return torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
'''
_UNWRAPPED = '''def {name}(model):
    """The model itself, without what averages its gradients."""
    parallel = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    return model.module if parallel else model
'''
_SHARE = '''class {share}(torch.utils.data.Sampler):
    """Rows that this process reads: a range of an order that all processes make alike.

    Every second epoch the ranges begin later, so that rows which nobody has read get their turn.
    """

    def __init__(self, dataset, batch_size, seed):
        self.size, self.seed, self.epoch = len(dataset), seed, 0
        self.count = self.size // (batch_size * {processes}) * batch_size

    def __len__(self):
        return self.count

    def __iter__(self):
        order = torch.arange(self.size)
        if self.seed is not None:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.size, generator=generator)
        left_over = self.size - {processes} * self.count
        first = {rank} * self.count + (left_over if self.epoch % 2 else 0)
        self.epoch += 1
        return iter(order[first : first + self.count].tolist())


def {loader}(dataset, batch_size=1, shuffle=False, *, seed=None, **more):
    """A loader of whole batches: of this process's share of the rows, if there are several."""
    sampler = None
    if {processes} > 1:
        sampler, shuffle = {share}(dataset, batch_size, seed if shuffle else None), False
    return torch.utils.data.DataLoader(
        dataset, batch_size, shuffle, sampler=sampler, drop_last=True, **more
    )
'''
_OWN_ORDER = ("sampler", "batch_sampler")


def constant(context: Context, source: Source, name: str) -> str:
    """The name of a constant of a file that has a number of the environment.

    Args:
        context: the program.
        source: the file.
        name: of the variable of the environment.
    """
    own = context.name(source, name)
    context.edits(source).need("import os")
    line = f'{own} = int(os.environ.get("{name}", "{_DEFAULTS[name]}"))'
    context.edits(source).define_once(line)
    return own


def parallel(context: Context, source: Source) -> str:
    """The name of a function that has the gradients of a model averaged over processes."""
    return _defined(context, source, "data_parallel", _PARALLEL)


def unwrapped(context: Context, source: Source) -> str:
    """The name of a function that returns the model which ``parallel`` was given."""
    return _defined(context, source, "unwrapped", _UNWRAPPED)


def _defined(context: Context, source: Source, wanted: str, text: str) -> str:
    name = context.name(source, wanted)
    if (source, name) not in context.once:
        context.once.add((source, name))
        context.edits(source).need("import torch")
        context.edits(source).define(text.format(name=name))
    return name


def loader(context: Context, source: Source) -> str:
    """The name of a function that makes the loader of a process."""
    name = context.name(source, "loader_of_process")
    if (source, name) not in context.once:
        context.once.add((source, name))
        context.edits(source).need("import torch")
        context.edits(source).define(
            _SHARE.format(
                loader=name,
                share=context.name(source, "Share"),
                rank=constant(context, source, "RANK"),
                processes=constant(context, source, "WORLD_SIZE"),
            )
        )
    return name


def divides(context: Context, call: cst.Call) -> bool:
    """Whether a loader of PopTorch gave each instance its share."""
    itself = argument(call, "auto_distributed_partitioning", 7)
    is_whole = itself is not None and m.matches(itself, m.Name("False"))
    return context.instances and not is_whole


def seed_of(context: Context, thing: Thing, call: cst.Call) -> list[cst.Arg]:
    """The seed of a loader that shuffles, as an argument.

    Raises:
        StepError: rows are chosen in a way that processes do not have alike.
    """
    drop = argument(call, "drop_last", 5)
    if drop is not None and not m.matches(drop, m.Name("True")):
        reason = (
            "processes that read different numbers of batches wait for each other without end: "
            "leave drop_last out"
        )
        raise StepError(call, reason)
    if any(argument(call, each) is not None for each in _OWN_ORDER):
        raise StepError(call, "a sampler chooses its rows, and popdist does, too: leave one out")
    shuffle = argument(call, "shuffle", 3)
    if shuffle is None or m.matches(shuffle, m.Name("False")):
        return []
    seeds = _seeds(context, thing, call)
    texts = {source.code(context.edits(source).applied(node)) for source, node in seeds}
    if len(texts) != 1:
        reason = "processes shuffle alike by a seed: set it once, with opts.randomSeed(42)"
        raise StepError(call, reason)
    require_visible(context, seeds[:1], thing.source, call, "is the seed of the order of rows")
    return [keyword("seed", texts.pop())]


def _seeds(
    context: Context, thing: Thing, call: cst.Call
) -> list[tuple[Source, cst.BaseExpression]]:
    """What the options of a loader are given as seeds."""
    _, things = options_of(context, thing.source, call, 0)
    every = [each for one in things for each in settings(context, one)]
    return [
        (each.source, each.call.args[0].value)
        for each in every
        if each.name == "randomSeed" and each.call.args
    ]
