"""Every condition that the original documents an exception for: its type, and words to keep.

Four tables: options; wrapping and running; annotations and operators; optimizers and data. A row
is what was done wrong, the exact type, words of the message, and a function that does it.
"""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers import mistakes as m
from helpers.wrapping import Calls, inference, options, rows, scorer, sgd, trainer
from poptorch import (
    AutoStage,
    CommGroupType,
    ConfigFileError,
    Error,
    MultiConv,
    Options,
    OutputMode,
    ParallelPhasedExecution,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    optim,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
X = torch.ones(4, 3)
ANY = ""  # the original's assertion has no words


def _frozen():
    chosen = options()
    poptorch.inferenceModel(scorer(), chosen)
    chosen.deviceIterations(2)


def _set(name, value):
    return lambda: setattr(Options(), name, value)


def _from_text(folder, text):
    (folder / "options").write_text(text)
    Options().loadFromFile(str(folder / "options"))


def _popart(key, value):
    made = options()
    made._Popart.set(key, value)
    poptorch.inferenceModel(scorer(), made)(*rows(4))


# fmt: off
OPTIONS = [
    ("set on frozen options", AttributeError, "Can't modify frozen Options", _frozen),
    ("unknown public attribute read", AttributeError, "Invalid attribute",
     lambda: Options().nonsense),
    ("new underscore attribute", AttributeError, "Invalid private attribute",
     _set("_nonsense", 1)),
    ("unknown key in set", AssertionError, "Invalid option", lambda: Options().set(nonsense=1)),
    ("wrong value type", AssertionError, "Unexpected type",
     lambda: Options().deviceIterations("2")),
    ("merging namespaces with equal keys", AssertionError, "Can't merge dictionaries",
     lambda: Options().Training.update({"gradient_accumulation": 2})),
    ("toDict with default output mode", AssertionError, "output mode must be picked",
     lambda: Options().toDict()),
    ("EveryN without period", AssertionError, "EveryN",
     lambda: Options().outputMode(OutputMode.EveryN)),
    ("wrong strategy type", AssertionError, ANY, lambda: Options().setExecutionStrategy("fast")),
    ("wrong connection type", AssertionError, "poptorch.ConnectionType",
     lambda: Options().connectionType(0)),
    ("wrong sync pattern", AssertionError, "poptorch.SyncPattern",
     lambda: Options().syncPattern("Full")),
    ("wrong output mode", AssertionError, "poptorch.OutputMode",
     lambda: Options().outputMode(2)),
    ("wrong seed", AssertionError, "Unexpected type", lambda: Options().randomSeed("1")),
    ("wrong ipu id", AssertionError, "Unexpected type", lambda: Options().useIpuId("1")),
    ("available memory key not IPUn", AssertionError, "Invalid key",
     lambda: Options().setAvailableMemoryProportion({"GPU0": 0.5})),
    ("inputReplicaGrouping All", ValueError, "cannot be All",
     lambda: Options().inputReplicaGrouping(1, CommGroupType.All)),
    ("group size > replication factor", ValueError, "cannot be larger than",
     lambda: Options().inputReplicaGrouping(2, CommGroupType.Consecutive)),
    ("group size not a divisor", ValueError, "must be a factor of",
     lambda: Options().replicationFactor(3).inputReplicaGrouping(2, CommGroupType.Consecutive)),
    ("reduction type NoReduction", ValueError, "must be set to", lambda:
     Options().Training.accumulationAndReplicationReductionType(
         poptorch.ReductionType.NoReduction)),
    ("reduction type of another kind", ValueError, "must be set to",
     lambda: Options().Training.accumulationAndReplicationReductionType("mean")),
    ("partials type", ValueError, "setPartialsType",
     lambda: Options().Precision.setPartialsType(torch.int32)),
    ("runningStatisticsAlwaysFloat non-bool", ValueError, "needs to be set to a bool",
     lambda: Options().Precision.runningStatisticsAlwaysFloat(1)),
    ("enableFloatingPointExceptions non-bool", AssertionError, "needs to be set to a bool",
     lambda: Options().Precision.enableFloatingPointExceptions(1)),
    ("traceModel(True)", ValueError, "no longer supported",
     lambda: Options().Jit.traceModel(True)),
    ("numIOTiles below the range", AssertionError, "even number between 32 and 192",
     lambda: Options().TensorLocations.numIOTiles(30)),
    ("numIOTiles above the range", AssertionError, "even number between 32 and 192",
     lambda: Options().TensorLocations.numIOTiles(194)),
    ("numIOTiles odd", AssertionError, "even number between 32 and 192",
     lambda: Options().TensorLocations.numIOTiles(33)),
    ("options file syntax", ConfigFileError, "SyntaxError at line 2",
     lambda tmp_path: _from_text(tmp_path, "deviceIterations(2)\ndeviceIterations(2")),
    ("unknown _Popart key at compile", Error, "Unknown int option", lambda: _popart("nonsense", 1)),
    ("_Popart value of a wrong type", Error, "Unknown str option",
     lambda: _popart("firstDotOp", "x")),
]

PLAIN = ((X,), {})
RUNNING = [
    ("options of wrong class", Error, "Invalid type: 'options'",
     lambda: poptorch.trainingModel(scorer(), {})),
    ("inference with GA != 1", Error, "gradientAccumulation to 1",
     lambda: inference(abs, gradientAccumulation=2)),
    ("second training wrap", RuntimeError, r"already been wrapped.*model\.destroy\(\)",
     lambda: trainer(trainer(scorer()))),
    ("buffer of exotic class", Error, "All buffers must be an instance", m.exotic_buffer),
    *((f"method needing an executable: {name}", Error,
       "has not been compiled or has been destroyed",
       lambda name=name: getattr(trainer(scorer()), name)())
      for name in ("copyWeightsToHost", "copyWeightsToDevice", "attachToDevice",
                   "detachFromDevice", "copyNamedBuffersToDevice")),
    ("method needing an executable: save", Error, "has not been compiled or has been destroyed",
     lambda tmp_path: trainer(scorer()).save(tmp_path / "x")),
    ("method needing an executable: rng_state", Error,
     "has not been compiled or has been destroyed", lambda: trainer(scorer()).rng_state),
    ("call with Never", AssertionError, "offline device", lambda: m.offline()(*rows(4))),
    ("attach with Never", AssertionError, "offline device", m.offline_attach),
    ("detach when detached", Error, "Device is not attached", m.detached_twice),
    ("attach when attached", Error, "Device is already attached",
     lambda: m.ran().attachToDevice()),
    ("getTensorNames before compile", AssertionError, "must be compiled",
     lambda: trainer(scorer()).getTensorNames()),
    ("unknown anchored tensor", AssertionError, "No tensor with name",
     lambda: m.ran().getAnchoredTensor("nonsense")),
    ("cycleCount without option", Error, "Cycle count logging is disabled",
     lambda: m.ran().cycleCount()),
    ("cycleCount before run", Error, "run the model at least once",
     lambda: trainer(scorer(), logCycleCount=True).cycleCount()),
    ("compilationTime before compile", Error, "compile the model before",
     lambda: poptorch.inferenceModel(scorer()).compilationTime()),
    ("compilationTime without bar", Error, "showCompilationProgressBar",
     lambda: m.ran().compilationTime()),
    ("copyNamedBuffersToDevice without option", Error, "No named buffers marked",
     lambda: m.ran().copyNamedBuffersToDevice()),
    ("backward on an output", Error,
     r"Results carry no gradient history.*Remove backward\(\) and optimizer\.step\(\)",
     lambda: trainer(scorer())(*rows(4))[0].backward()),
    ("batch rule", AssertionError, "Invalid batch dimension",
     lambda: m.infer(lambda x: x + 1, deviceIterations=3)),
    ("too many arguments", AssertionError, "Too many arguments",
     lambda: trainer(scorer())(X, X, X)),
    ("unknown keyword", AssertionError, "is not a valid parameter",
     lambda: trainer(scorer())(X, X, z=X)),
    ("duplicate argument", AssertionError, "passed more than once",
     lambda: trainer(scorer())(X, x=X)),
    ("missing argument", Error, "Mandatory parameter target missing",
     lambda: trainer(scorer())(X)),
    ("later call differs: type", Error, "Type mismatch for",
     m.later(PLAIN, ((3,), {}))),
    ("later call differs: length", Error, "Length mismatch for",
     m.later((([X],), {}), (([X, X],), {}))),
    ("later call differs: keys", Error, "Keys mismatch for",
     m.later((({"a": X},), {}), (({"b": X},), {}))),
    ("later call differs: keywords", Error, "Missing arguments: a. Unexpected arguments: b",
     m.later(((), {"a": X}), ((), {"b": X}))),
    ("later call differs: data type", Error, "Data type mismatch for",
     m.later(PLAIN, ((X.half(),), {}))),
    ("later call differs: shape", Error, "Shape mismatch for", m.later(PLAIN, ((X[:2],), {}))),
    ("later call differs: value", Error, "Value mismatch for",
     m.later(((X, 2), {}), ((X, 3), {}))),
    ("later call differs: number", Error, "Number of positional arguments",
     m.later(PLAIN, ((X, X), {}))),
    ("reassigned buffer", Error, "Buffer held is reassigned within the model",
     m.reassign("held")),
    ("reassigned parameter", Error, "Parameter learnt is reassigned within the model",
     m.reassign("learnt")),
    ("removed buffer", Error, "Buffer held is removed from the model",
     lambda: m.noted(lambda module: delattr(module, "held"))),
    ("removed parameter", Error, "Parameter learnt is removed from the model",
     lambda: m.noted(lambda module: delattr(module, "learnt"))),
    ("replicated in-place buffer", Error, "does not support broadcasting buffers",
     lambda: m.noted(lambda module: module.held.add_(1), replicationFactor=2)),
    ("no loss", Error,
     r"Couldn't find a loss in graph.*poptorch\.identity_loss\(loss, reduction='none'\)",
     lambda: m.train(lambda self, x: x * self.weight)),
    ("several losses", Error, r"Multiple independent losses.*in poptorch\.identity_loss\. ",
     lambda: m.train(lambda self, x: (m.mse(self, x), F.l1_loss(x * self.weight, x)))),
    ("CTC without reduction", Error, 'reduction="none"', m.ctc_without_reduction),
    ("pipeline too shallow: training", Error,
     r"gradientAccumulation must be greater than or equal to the number of pipeline stages \(3\)",
     lambda: trainer(m.Chain(0, 1), gradientAccumulation=2)(torch.ones(2, 4))),
    ("pipeline too shallow: inference", Error,
     r"deviceIterations must be greater than or equal to the number of pipeline stages \(2\)",
     lambda: m.chain(0, 1, rows_of_x=1)),
    ("op outside any block after a block scope", Error, "No active Block", m.after_a_block),
    ("not a power of two", Error, "autoRoundNumIPUs", lambda: m.chain(0, 1, 2)),
    ("more than 64 IPUs", Error, r"Too many IPUs requested \(128\).*distributed",
     lambda: m.infer(lambda x: x + 1, torch.ones(128), replicationFactor=128)),
    ("no device", Error, "Failed to acquire", m.no_device),
    ("per-replica scalar", Error, "Scalars cannot be passed", m.per_replica_scalar),
    ("version mismatch on load", AssertionError, "Invalid file .*PopTorch version mismatch",
     lambda tmp_path, monkeypatch: m.other_version(tmp_path, monkeypatch, poptorch.load)),
    ("version mismatch on loadExecutable", Error, "PopTorch version mismatch",
     lambda tmp_path, monkeypatch: m.other_version(
         tmp_path, monkeypatch, lambda path: trainer(scorer()).loadExecutable(path))),
    ("exported without model", AssertionError, r"export_model=False.*loadExecutable\('",
     lambda tmp_path: poptorch.load(m.exported(tmp_path, export_model=False))),
    ("pre hook not callable", RuntimeError, "must be callable",
     lambda: poptorch.registerPreCompileHook(3)),
    ("post hook not callable", RuntimeError, "must be callable",
     lambda: poptorch.registerPostCompileHook(3)),
    ("custom parser of wrong base", Error, "must inherit from ICustomArgParser",
     lambda: poptorch.registerCustomArgParser(Calls, object())),
]

OPERATORS = [
    ("BeginBlock twice", Error, "already been assigned to a block", m.begun_twice),
    ("BeginBlock on non-callable", Error, "not an instance of torch.nn.Module",
     lambda: poptorch.BeginBlock(3)),
    ("unknown block in strategy", AssertionError, "Unknown Block",
     lambda: m.blocks_with(PipelinedExecution("a"), "b")),
    ("block in two stages", AssertionError, "more than one stage",
     lambda: PipelinedExecution("a", "a")),
    ("SameAsIpu without ipu_id", AssertionError, "no IPU was specified",
     lambda: m.blocks_with(ShardedExecution(AutoStage.SameAsIpu), "a")),
    ("serial phases without phases", AssertionError, "no AutoStage", SerialPhasedExecution),
    ("parallel phases without phases", AssertionError, "no AutoStage", ParallelPhasedExecution),
    ("wrong phase parity", Error, "even phases must run", m.wrong_parity),
    ("recomputationCheckpoint on non-tensor", ValueError, "All inputs must be tensors",
     lambda: poptorch.recomputationCheckpoint(X, 3)),
    ("for_loop inputs: no list", ValueError, "to be a list of tensors",
     lambda: poptorch.for_loop(2, lambda x: x, X)),
    ("for_loop inputs: no tensors", ValueError, "to be a list of tensors",
     lambda: poptorch.for_loop(2, lambda x: x, [3])),
    ("cond inputs", ValueError, "then_inps and else_inps",
     lambda: poptorch.cond(torch.tensor(True), abs, X, abs, [X])),
    ("for_loop in training", Error, r"for_loop\(\) is only supported in inference",
     lambda: m.train(lambda self, x: poptorch.for_loop(2, lambda x: [x + 1], [x]))),
    ("cond in training", Error, r"cond\(\) is only supported in inference",
     lambda: m.train(lambda self, x: poptorch.cond(
         x.sum() > 0, lambda x: [x], [x], lambda x: [-x], [x]))),
    ("custom_op attributes: key", ValueError, "must be strings", m.custom({1: 2})),
    ("custom_op attributes: value", ValueError, "Attribute values", m.custom({"a": None})),
    ("custom_op attributes: list", ValueError, "must all be the same", m.custom({"a": [1, 2.0]})),
    ("custom_op attributes: text", ValueError, "non-ASCII", m.custom({"a": "Zürich"})),
    ("MultiConv available memory", AssertionError, "Invalid",
     lambda: MultiConv().availableMemoryProportions("x")),
    ("MultiConv memory of one", AssertionError, "Invalid",
     lambda: MultiConv().availableMemoryProportions([0.1, "x"])),
    ("MultiConv type of one", ValueError, "Invalid",
     lambda: MultiConv().partialsTypes([torch.float, "half"])),
    ("MultiConv dithering of one", ValueError, "Invalid",
     lambda: MultiConv().enableConvDithering([True, None])),
    ("MultiConv partials type", ValueError, "Invalid",
     lambda: MultiConv().partialsTypes(torch.int32)),
    ("MultiConv dithering", ValueError, "Invalid", lambda: MultiConv().enableConvDithering("x")),
    ("MultiConv plan type", AssertionError, "Invalid", lambda: MultiConv().planType(0)),
    ("MultiConv reserved tiles", AssertionError, "Invalid",
     lambda: MultiConv().perConvReservedTiles(1.5)),
    ("MultiConv cycle back-off", AssertionError, "Invalid",
     lambda: MultiConv().cycleBackOff("x")),
    ("NameScope non-string", AssertionError, "must be a string", lambda: poptorch.NameScope(3)),
    ("overlap with pipelining", Error, "Overlapped IO is not supported",
     lambda: m.overlapped(strategy=PipelinedExecution())),
    ("overlap without IO tiles", Error, "No IO tiles allocated.* at least 32",
     lambda: m.overlapped(tiles=0)),
    ("overlap with wrong output mode", Error, "Unsupported output mode",
     lambda: m.overlapped(mode=OutputMode.Final)),
    ("identity_loss reduction", AssertionError, "Unsupported reduction type",
     lambda: poptorch.identity_loss(X, "max")),
]

CENTERED = [({"params": [torch.nn.Parameter(X)], "centered": flag}) for flag in (True, False)]
SAMPLER = [[0, 1]]
DATA = [
    ("unsupported optimizer", AssertionError, "optimizer type LBFGS: its step calls a closure",
     lambda: m.converted(torch.optim.LBFGS)),
    ("amsgrad of torch", ValueError, "non-amsgrad",
     lambda: m.converted(lambda p: torch.optim.Adam(p, amsgrad=True))),
    ("amsgrad of poptorch", ValueError, "non-amsgrad",
     lambda: m.converted(lambda p: optim.AdamW(p, amsgrad=True))),
    ("accumulator type", AssertionError, "Accumulation types must be",
     lambda: optim.SGD(scorer().parameters(), lr=0.1, accum_type=torch.int32)),
    ("centered differs between groups", AssertionError, "same value for the 'centered'",
     lambda: m.converted(lambda p: optim.RMSprop(CENTERED, lr=0.1))),
    ("missing group attribute", AssertionError, "Mandatory attribute momentum not found",
     lambda: m.converted(lambda p: optim.SGD(p, lr=0.1), momentum=None)),
    ("non-number attribute", AssertionError, "a number for attribute lr, found 'fast'",
     lambda: m.converted(lambda p: torch.optim.SGD(p, lr=0.1), lr="fast")),
    ("unknown variable attribute", AssertionError, "Unknown attribute",
     lambda: optim.SGD(scorer().parameters(), lr=0.1).variable_attrs.markAsVariable("beta3")),
    ("fp16 accumulation after compile", ValueError, "compiled with accumulators of torch",
     m.late_half_accumulators),
    ("load empty state", RuntimeError, "it is empty", lambda: m.loaded({})),
    ("load torch state", RuntimeError, "Only IPU optimizer states",
     lambda: m.loaded(m.torch_state())),
    ("batch_sampler with batch_size", Error, "mutually exclusive",
     lambda: m.loader(batch_sampler=SAMPLER, batch_size=2)),
    ("batch_sampler with shuffle", Error, "mutually exclusive",
     lambda: m.loader(batch_sampler=SAMPLER, shuffle=True)),
    ("batch_sampler with automatic partitions", Error, "mutually exclusive",
     lambda: m.loader(batch_sampler=SAMPLER, processes=2)),
    ("iterable with several processes", AssertionError, "not supported for IterableDataset",
     lambda: m.loader(m.data.Stream(4), processes=2)),
    ("distributed shuffle without seed", AssertionError, "must set poptorch.Options.randomSeed",
     lambda: m.loader(processes=2, shuffle=True)),
    ("rebatched_worker_size too large", AssertionError,
     r"\(3\) must be <= to the combined batch size \(2\)",
     lambda: m.loader(mode=m.Mode.AsyncRebatched, batch_size=2, rebatched_worker_size=3)),
    ("rebatched_size in async options", AssertionError, "manually specify",
     lambda: m.loader(mode=m.Mode.Async, async_options={"rebatched_size": 2})),
    ("accessor over accessor", Error, "already uses an AsynchronousDataAccessor", m.two_accessors),
    ("rebatched_size <= 1", AssertionError, "greater than 1",
     lambda: m.accessor(m.data.Range(4), rebatched_size=1)),
    # The worker's assertion reaches the program inside the error of the start that failed.
    ("nested data in accessor", Error, "flat 1D container",
     lambda: m.accessor(m.data.Sequence((X, [X])))),
    ("empty dataset", Error, "worker thread failed to start",
     lambda: m.accessor(m.data.Sequence())),
    ("worker died", AssertionError, "data fetcher", m.dead_worker),
]
# fmt: on

TABLES = {"options": OPTIONS, "running": RUNNING, "operators": OPERATORS, "data": DATA}


@pytest.mark.parametrize(
    ("kind", "words", "act"),
    [
        pytest.param(*row[1:], id=f"{table} {row[0]}")
        for table, result in TABLES.items()
        for row in result
    ],
)
def test_the_error_table(kind, words, act, tmp_path, monkeypatch):
    fixtures = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    wanted = act.__code__.co_varnames[: act.__code__.co_argcount] if _is_plain(act) else ()
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        act(**{name: fixtures[name] for name in wanted if name in fixtures})
    assert type(caught.value) is kind
    assert str(caught.value).strip()


def _is_plain(act):
    return hasattr(act, "__code__")


def test_class_weights_of_a_loss_are_more_than_the_original_has():
    """The original refuses them ('Parameter "weight" is unsupported'); here they are torch's."""
    weight = torch.tensor([1.0, 2.0, 0.5])
    model, plain = scorer(), scorer()
    x, target = rows(4)[0], torch.tensor([0, 1, 2, 1])
    for each in (model, plain):
        each.forward = lambda x, target, self=each: F.cross_entropy(self.fc(x), target, weight)
    expected = plain.forward(x, target)
    optimizer = sgd(plain)
    expected.backward()
    optimizer.step()
    assert torch.equal(trainer(model)(x, target), expected.detach())
    assert torch.equal(model.fc.weight, plain.fc.weight)
