"""Behaviours that the original's documentation does not spell out: optimizers, options, data.

The others are in ``test_behaviours.py``.
"""

import copy
import itertools
import os
import subprocess
import sys

import pytest
import torch

import poptorch
from helpers import datasets as data
from helpers.wrapping import inference, options, plain_steps, rows, scorer, sgd, trainer, weights
from poptorch import MeanReductionStrategy, OutputMode, optim

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
X = torch.arange(12.0).reshape(4, 3)
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}
Mode = poptorch.DataLoaderMode


# -- optimizers ------------------------------------------------------------------------------

KINDS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_step_on_the_host(kind):
    def make(model):
        return kind(model.parameters(), lr=0.1, weight_decay=0.1)

    host, model = scorer(), scorer()
    plain_steps(host, make(host), [[rows(4, seed)] for seed in range(3)])
    wrapped = trainer(model, make(model))
    for seed in range(3):
        wrapped(*rows(4, seed))
    assert not torch.equal(weights(host), weights(scorer()))
    torch.testing.assert_close(weights(host), weights(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_max_grad_norm_clips_the_global_norm(kind, limit):
    model, plain = scorer(), scorer()
    # Two groups: the norm is over the parameters of both.
    groups = [{"params": [p]} for p in model.parameters()]
    wrapped = trainer(model, kind(groups, lr=0.1, max_grad_norm=limit))
    stepper = getattr(torch.optim, kind.__name__)(plain.parameters(), lr=0.1)
    for seed in range(2):
        wrapped(*rows(4, seed))
        stepper.zero_grad()
        plain(*rows(4, seed))[0].backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), limit)
        stepper.step()
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_keep_optimizer_attributes(kind):
    model = scorer()
    original = kind(model.parameters(), lr=0.1, loss_scaling=4.0, accum_type=torch.float16)
    original.variable_attrs.markAsConstant("lr")
    original.extra = "a user's own"
    result = copy.copy(original)
    assert type(result) is kind
    assert (result.loss_scaling, result.accum_type, result.extra) == (
        4.0,
        torch.float16,
        "a user's own",
    )
    assert result.variable_attrs.isConstant("lr")
    assert not result.variable_attrs.isConstant("loss_scaling")
    wrapped = trainer(model, result)
    wrapped(*rows(4))
    assert not torch.equal(weights(model), weights(scorer()))


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ({"accum_type": torch.float16}, MeanReductionStrategy.Running),
        ({"accum_type": torch.float16, "use_combined_accum": True}, MeanReductionStrategy.Post),
        ({"accum_type": torch.float32}, MeanReductionStrategy.Post),
    ],
)
def test_half_accumulators_take_a_running_mean(settings, strategy):
    model, chosen = scorer(), options(gradientAccumulation=2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **settings)
    wrapped = poptorch.trainingModel(model, chosen, optimizer)
    name = "meanAccumulationAndReplicationReductionStrategy"
    assert getattr(wrapped.options.Training, name) == strategy
    assert getattr(chosen.Training, name) == MeanReductionStrategy.Post
    wrapped(*rows(4))
    plain = scorer()
    plain_steps(plain, sgd(plain), [[rows(4)]])
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-3)


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_the_executor_copies_the_options(training):
    chosen = options()
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    wrapped = wrap(scorer(), chosen)
    assert wrapped.options is not chosen
    assert wrapped.options.output_mode == (OutputMode.Final if training else OutputMode.All)
    assert chosen.defaultOutputMode()
    assert chosen.output_mode == OutputMode.Default
    for frozen in (chosen, wrapped.options):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            frozen.deviceIterations(2)


def test_deep_copies_are_not_frozen():
    chosen = options(gradientAccumulation=3)
    poptorch.trainingModel(scorer(), chosen)
    for change in (
        lambda o: o.deviceIterations(2),
        lambda o: setattr(o, "replication_factor", 2),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Precision.enableStochasticRounding(True),
        lambda o: o.Distributed.disable(),
        lambda o: o.TensorLocations.numIOTiles(32),
        lambda o: o._Popart.set("firstDotOp", 1),
        lambda o: o.anchorTensor("a", "b"),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change(chosen)
        change(copy.deepcopy(chosen))
    copied = copy.deepcopy(chosen)
    copied.Training.gradientAccumulation(1)
    assert chosen.Training.gradient_accumulation == 3
    assert poptorch.inferenceModel(scorer(), copied)(*rows(4))


def test_the_environment_gives_default_options(monkeypatch):
    text = """{"deviceIterations": 3, "Training.gradientAccumulation": 2,
        "Training.accumulationAndReplicationReductionType": "ReductionType.Sum",
        "outputMode": "OutputMode.Sum", "modelName": "OutputMode.None",
        "Distributed.configureProcessId": [1, 2], "_Popart.set": ["logDir", "OutputMode.Sum"]}"""
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    made = poptorch.Options()
    assert made.device_iterations == 3
    assert made.Training.gradient_accumulation == 2
    reduction = made.Training.accumulation_and_replication_reduction_type
    assert reduction == poptorch.ReductionType.Sum
    assert made.output_mode == OutputMode.Sum
    assert made.model_name == "OutputMode.None"  # no such member
    assert (made.Distributed.processId, made.Distributed.numProcesses) == (1, 2)
    assert made._Popart.options["logDir"] == "OutputMode.Sum"  # inside a list


MADE = """
chosen = poptorch.Options().deviceIterations(2)
chosen.setAvailableMemoryProportion({"IPU1": 0.5, "IPU0": 0.25})
chosen._Popart.set("dotChecks", {"b", "a", "c", "d"})
"""


def test_options_as_text_are_deterministic():
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another than in this process
    code = f"import poptorch\n{MADE}\nprint(chosen)"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-c", code]
    texts = {subprocess.check_output(run, env=environment, text=True).strip()}
    names = {"poptorch": poptorch}
    exec(MADE, names)
    assert texts == {str(names["chosen"])} == {str(copy.deepcopy(names["chosen"]))}
    assert "device_iterations=2" in str(names["chosen"])
    assert str(names["chosen"].deviceIterations(4)) not in texts


# -- data ------------------------------------------------------------------------------------


def load(dataset, batch_size=2, process=0, processes=1, **settings):
    opts = options(**{k: settings.pop(k) for k in ("deviceIterations",) if k in settings})
    opts.randomSeed(1).Distributed.configureProcessId(process, processes)
    settings.setdefault("async_options", FORK)
    return poptorch.DataLoader(opts, dataset, batch_size, **settings)


def labels(loader):
    """The numbers of each batch of one epoch; the second tensor where there are two."""
    return [(b[1] if isinstance(b, list) else b).tolist() for b in loader]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


@pytest.mark.parametrize("mode", [Mode.Sync, Mode.Async])
def test_shuffled_processes_see_disjoint_data_that_changes(mode):
    loaders = [
        load(data.Range(24), process=p, processes=3, shuffle=True, mode=mode) for p in range(3)
    ]
    epochs = []
    for _ in range(3):
        parts = [flat(labels(loader)) for loader in loaders]
        assert sorted(flat(parts)) == list(range(24))  # disjoint, and nothing is left out
        assert [len(part) for part in parts] == [8, 8, 8]
        epochs.append(parts)
    for loader in loaders:
        loader.terminate()
    for process in range(3):
        assert len({tuple(epoch[process]) for epoch in epochs}) == 3
        assert len({frozenset(epoch[process]) for epoch in epochs}) > 1
    assert flat(epochs[0]) != list(range(24))


@pytest.mark.parametrize("mode", [Mode.Async, Mode.AsyncRebatched])
def test_asynchronous_loaders_restart_after_break(mode):
    loader = load(data.Range(12), mode=mode, num_workers=1)
    whole = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    for stop in (0, 1, 4):
        for index, (_, y) in enumerate(loader):
            assert y.tolist() == whole[index]
            if index == stop:
                break
    assert labels(loader) == whole
    assert labels(loader) == whole
    loader.terminate()


class MicroBatches(list):
    """A batch sampler; rebatching asks for its batch size."""

    batch_size = 2


@pytest.mark.parametrize("mode", list(Mode))
def test_batches_of_a_sampler_are_grouped_by_device_iterations(mode):
    sampler = MicroBatches([[5, 0], [3, 3], [1, 2], [4, 0], [2, 5], [1, 1]])
    loader = load(data.Range(6), 1, batch_sampler=sampler, deviceIterations=3, mode=mode)
    expected = [[5, 0, 3, 3, 1, 2], [4, 0, 2, 5, 1, 1]]
    assert labels(loader) == expected
    assert loader.combinedBatchSize == 6
    seen = []
    wrapped = inference(lambda x, y: (seen.append(y.shape), y * 10)[1], deviceIterations=3)
    batches = [wrapped(*batch).tolist() for batch in loader]
    assert batches == [[10 * number for number in batch] for batch in expected]
    assert seen == [(2,)]  # forward has one micro-batch of the sampler
    loader.terminate()


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [10, 10]), (False, [10, 10, 3])])
def test_rebatching_merges_leftovers_across_workers(drop_last, sizes):
    loader = load(
        data.Stream(23),
        10,
        num_workers=4,
        drop_last=drop_last,
        mode=Mode.AsyncRebatched,
        rebatched_worker_size=4,
        worker_init_fn=id,
    )
    for _ in range(2):
        classes = labels(loader)
        assert [len(batch) for batch in classes] == sizes
        numbers = flat(classes)
        assert len(set(numbers)) == len(numbers)
        assert drop_last or sorted(numbers) == list(range(23))
    loader.terminate()


def test_perf_counters_hold_one_entry_per_step():
    settings = {"deviceIterations": 3, "gradientAccumulation": 2, "outputMode": OutputMode.All}
    names = ("input", "input_complete", "output", "output_complete")
    latencies = ("getHostIpuLatency", "getComputeLatency", "getIpuHostLatency", "getLatency")
    wrapped = trainer(scorer(), **settings)
    for _ in range(2):
        wrapped(*rows(6))
        counters = wrapped.getPerfCounters()
        assert all([len(moments) for moments in counters[name]] == [6, 6] for name in names)
        for tensor in range(2):
            times = zip(*(counters[name][tensor] for name in names), strict=True)
            assert all(list(step) == sorted(step) for step in times)
        assert all(min(getattr(wrapped, name)()) >= 0 for name in latencies)
        assert wrapped.getLatency()[2] > 0
    synthetic = trainer(scorer(), enableSyntheticData=True)
    synthetic(*rows(4))
    assert synthetic.getPerfCounters() == {name: [[], []] for name in names}
    assert [getattr(synthetic, name)() for name in latencies] == [(0.0, 0.0, 0.0)] * 4


def test_compile_hooks_run_in_order_and_can_be_removed():
    seen = []
    registers = {"pre": poptorch.registerPreCompileHook, "post": poptorch.registerPostCompileHook}
    handles = {
        (kind, number): register(lambda kind=kind, number=number: seen.append((kind, number)))
        for number in (1, 2, 3)
        for kind, register in registers.items()
    }
    try:
        wrapped = inference(lambda x: (seen.append("forward"), x + 1)[1])
        wrapped(X)
        wrapped(X)
        pre, post = ([(kind, number) for number in (1, 2, 3)] for kind in ("pre", "post"))
        assert seen == [*pre, "forward", *post]
        seen.clear()
        handles.pop(("pre", 2)).remove()
        handles.pop(("post", 1)).remove()
        trainer(scorer())(*rows(4))  # every compilation of any wrapper
        assert seen == [("pre", 1), ("pre", 3), ("post", 2), ("post", 3)]
    finally:
        for handle in handles.values():
            handle.remove()
    inference(lambda x: x + 1)(X)
    assert len(seen) == 4
