"""One function per mistake of the error table that takes more than an expression to make."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers import datasets as data
from helpers.wrapping import Calls, Scorer, inference, options, rows, scorer, sgd, trainer

X = torch.ones(4, 3)
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}
Mode = poptorch.DataLoaderMode


# -- models ----------------------------------------------------------------------------------


def train(forward, *args, **settings):
    """Trains a forward function of (model, *args) for one call."""
    return trainer(Calls(forward), **settings)(*(args or (X,)))


def mse(model, x):
    return F.mse_loss(x * model.weight, x)


def infer(function, *args, **settings):
    """Runs a forward function of the inputs alone."""
    return inference(function, **settings)(*(args or (X,)))


def ran(**settings):
    """A scorer's training wrapper after one call."""
    wrapped = trainer(scorer(), **settings)
    wrapped(*rows(4))
    return wrapped


class Chain(torch.nn.Module):
    """Layers on the given IPUs, then a loss."""

    def __init__(self, *ipus):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in ipus)
        for layer, ipu in zip(self.layers, ipus, strict=True):
            poptorch.BeginBlock(layer, ipu_id=ipu)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return poptorch.identity_loss(x, "mean")


def chain(*ipus, rows_of_x=8, **settings):
    """Inference of a chain whose pipeline is full."""
    made = options(deviceIterations=rows_of_x, **settings)
    return poptorch.inferenceModel(Chain(*ipus), made)(torch.ones(rows_of_x, 4))


class Noted(torch.nn.Module):
    """A buffer and a parameter, and a forward that does something to one of them."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.register_buffer("held", torch.ones(3))
        self.learnt = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.act(self)
        return x + 1


def noted(act, **settings):
    return poptorch.inferenceModel(Noted(act), options(**settings))(X)


def reassign(name):
    def act(module):
        value = getattr(module, name) + 1
        setattr(module, name, torch.nn.Parameter(value) if name == "learnt" else value)

    return lambda: noted(act)


def exotic_buffer():
    class Special(torch.Tensor):
        pass

    model = scorer()
    model.register_buffer("special", torch.ones(2).as_subclass(Special))
    trainer(model)


def later(first, second):
    """Two calls of one wrapper."""

    def act():
        wrapped = inference(lambda *args, **kwargs: (args, kwargs))
        wrapped(*first[0], **first[1])
        wrapped(*second[0], **second[1])

    return act


def offline():
    return poptorch.inferenceModel(scorer(), options(connectionType=poptorch.ConnectionType.Never))


def offline_attach():
    wrapped = offline()
    wrapped.compile(*rows(4))
    wrapped.attachToDevice()


def detached_twice():
    wrapped = ran()
    wrapped.detachFromDevice()
    wrapped.detachFromDevice()


def no_device(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "ipu")
    infer(lambda x: x + 1)


def ctc_without_reduction():
    probs, targets, lengths = torch.randn(2, 5, 3), torch.ones(2, 2).int(), torch.full((2,), 5)

    def forward(model, probs, targets, lengths):
        given = (probs.transpose(0, 1) * model.weight).log_softmax(2), targets, lengths
        return F.ctc_loss(*given, torch.full((2,), 2), reduction="none")

    train(forward, probs, targets, lengths)


def per_replica_scalar():
    model = Calls(mse)
    wrapped = trainer(model, replicationFactor=2)
    wrapped.weight.replicaGrouping(
        poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
    )
    wrapped(X)


def exported(folder, **settings):
    """The file of a trained scorer."""
    ran().save(folder / "x", **settings)
    return folder / "x"


def other_version(folder, monkeypatch, load):
    path = exported(folder)
    monkeypatch.setattr("poptorch._files.saved_file.__version__", "9.9")
    load(path)


# -- blocks and operators --------------------------------------------------------------------


def blocks_with(strategy, *names, **block):
    """Runs a forward with the given blocks."""

    def forward(x):
        for name in names:
            with poptorch.Block(name, **block):
                x = x + 1
        return x

    made = options().setExecutionStrategy(strategy)
    return poptorch.inferenceModel(Calls(lambda self, x: forward(x)), made)(X)


def begun_twice():
    layer = poptorch.BeginBlock(torch.nn.Linear(2, 2))
    poptorch.BeginBlock(layer)


def after_a_block():
    def forward(x):
        with poptorch.Block(ipu_id=0):
            x = x * 2
        return x + 1

    infer(forward)


def wrong_parity():
    strategy = poptorch.ParallelPhasedExecution("even", "odd")
    strategy.phase(0).ipus(1)
    blocks_with(strategy, "even", "odd")


def custom(attributes):
    return lambda: poptorch.custom_op([X], "Cube", "com.acme", 1, [X], attributes)


def overlapped(strategy=None, tiles=32, mode=poptorch.OutputMode.All):
    made = options(outputMode=mode)
    made.setExecutionStrategy(strategy or poptorch.ShardedExecution())
    if tiles:
        made.TensorLocations.numIOTiles(tiles)
    model = Calls(
        lambda self, x: poptorch.set_overlap_for_input(
            x, poptorch.OverlapMode.OverlapAccumulationLoop
        )
    )
    poptorch.inferenceModel(model, made)(X)


# -- optimizers and data ---------------------------------------------------------------------


def converted(make, **values):
    """Wraps with an optimizer whose first group is changed; None removes an entry."""
    model = Scorer()
    optimizer = make(model.parameters())
    optimizer.param_groups[0].update(values)
    for name in [name for name, value in values.items() if value is None]:
        del optimizer.param_groups[0][name]
    poptorch.trainingModel(model, options(), optimizer)


def late_half_accumulators():
    wrapped = ran()
    half = poptorch.optim.SGD(wrapped.model.parameters(), lr=0.1, accum_type=torch.float16)
    wrapped.setOptimizer(half)


def loaded(state):
    poptorch.optim.SGD(scorer().parameters(), lr=0.1).load_state_dict(state)


def torch_state():
    return sgd(scorer()).state_dict()


def loader(dataset=None, processes=1, **settings):
    opts = options()
    opts.Distributed.configureProcessId(0, processes)
    return poptorch.DataLoader(opts, dataset or data.Range(4), **settings)


def accessor(dataset, **settings):
    return poptorch.AsynchronousDataAccessor(dataset, **FORK | settings)


def two_accessors():
    inner = loader(mode=Mode.Async, async_options=FORK)
    try:
        accessor(inner)
    finally:
        inner.terminate()


def dead_worker():
    opened = accessor(data.Failing())
    try:
        list(opened)
    finally:
        opened.terminate()
