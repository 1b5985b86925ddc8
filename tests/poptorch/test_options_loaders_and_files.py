"""Behaviours that the original's own tests pin: options, loading, observing, files.

Each runs through the public interface only.
"""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers import datasets as data
from helpers.wrapping import Calls, inference, options, rows, scorer, trainer, weights
from poptorch import DataLoaderMode, OutputMode

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}
X = torch.arange(4.0)


# --- options


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda o: o.deviceIterations(2.0), AssertionError, "Unexpected type"),
        (lambda o: o.replicationFactor("2"), AssertionError, "Unexpected type"),
        (lambda o: o.Training.gradientAccumulation(None), AssertionError, "Unexpected type"),
        (lambda o: o.outputMode(1.5), AssertionError, "1.5"),
        (lambda o: o.randomSeed("7"), AssertionError, "'7'|str"),
        (lambda o: setattr(o, "device_iterations", "2"), AssertionError, "Unexpected type"),
        (lambda o: o.nonsense, AttributeError, "Invalid attribute nonsense"),
        (lambda o: setattr(o, "_nonsense", 1), AttributeError, "Invalid private attribute"),
        (lambda o: setattr(o, "nonsense", 1), AssertionError, "Invalid option"),
    ],
)
def test_wrong_types_and_unknown_names_are_refused(change, kind, words):
    opts = poptorch.Options()
    with pytest.raises(kind, match=words):
        change(opts)
    assert (opts.device_iterations, opts.replication_factor) == (1, 1)


def test_options_are_frozen_by_a_loader():
    opts = poptorch.Options()
    poptorch.DataLoader(opts, data.Range(4))
    for change in (
        lambda: opts.deviceIterations(2),
        lambda: opts.Training.gradientAccumulation(2),
        lambda: opts._Popart.set("anything", 1),
        lambda: setattr(opts, "replication_factor", 2),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change()
    assert opts.clone().deviceIterations(2).device_iterations == 2


def test_errors_in_a_file_of_options_show_the_line(tmp_path):
    path = tmp_path / "my.options"
    path.write_text("# a comment\n\ndeviceIterations(3)\nreplicationFactor(2\n")
    with pytest.raises(
        poptorch.ConfigFileError, match=r"SyntaxError at line 2.*my\.options(.|\n)*\n> .*Factor\(2"
    ):
        poptorch.Options().loadFromFile(str(path))
    path.write_text("nonsense(3)\n")
    with pytest.raises(AttributeError, match="nonsense"):
        poptorch.Options().loadFromFile(str(path))
    path.write_text("deviceIterations(3)\nTraining.gradientAccumulation(5) # five\n")
    loaded = poptorch.Options().loadFromFile(str(path))
    assert (loaded.device_iterations, loaded.Training.gradient_accumulation) == (3, 5)


def test_default_options_of_the_environment_take_enum_names_and_lists(monkeypatch):
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS",
        '{"deviceIterations": 4, "Training.gradientAccumulation": 3, '
        '"outputMode": "OutputMode.Sum", "_Popart.set": ["enableOutlining", true], '
        '"connectionType": "ConnectionType.Never", "modelName": "OutputMode.None"}',
    )
    output = poptorch.Options()
    assert (output.device_iterations, output.Training.gradient_accumulation) == (4, 3)
    assert output.output_mode == OutputMode.Sum
    assert output.connection_type == poptorch.ConnectionType.Never
    assert output._Popart.options["enableOutlining"] is True
    assert output.model_name == "OutputMode.None"  # no member: the string itself


# --- loading


def load(opts, dataset, *args, **kwargs):
    kwargs.setdefault("async_options", FORK)
    return poptorch.DataLoader(opts, dataset, *args, **kwargs)


def numbers(loader):
    """The numbers in all batches of one epoch."""
    batches = [batch[1] if isinstance(batch, list) else batch for batch in loader]
    return [int(number) for batch in batches for number in batch]


def shards(size, processes, **settings):
    """One loader for each process."""
    made = []
    for process in range(processes):
        opts = options(deviceIterations=2, randomSeed=5)
        opts.Distributed.configureProcessId(process, processes)
        made.append(load(opts, data.Range(size), 2, **settings))
    return made


def test_processes_divide_the_dataset_and_take_turns_with_what_is_left():
    loaders = shards(26, 3)  # two batches of 4 each: 24 of the 26
    epochs = [[numbers(loader) for loader in loaders] for _ in range(4)]
    for epoch in epochs:
        everything = list(itertools.chain(*epoch))
        assert len(everything) == len(set(everything)) == 24
    assert [min(min(part) for part in epoch) for epoch in epochs] == [0, 2, 0, 2]
    assert {n for epoch in epochs[:2] for part in epoch for n in part} == set(range(26))


def test_shuffled_processes_stay_disjoint_and_epochs_differ():
    loaders, others = shards(24, 3, shuffle=True), shards(24, 3, shuffle=True)
    epochs = [[numbers(loader) for loader in loaders] for _ in range(3)]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(24))
    assert len({tuple(itertools.chain(*epoch)) for epoch in epochs}) == 3
    assert epochs == [[numbers(loader) for loader in others] for _ in range(3)]
    opts = options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(AssertionError, match=r"must set poptorch\.Options\.randomSeed"):
        load(opts, data.Range(8), shuffle=True)


@pytest.fixture
def accessor():
    opened = []

    def read(dataset, **settings):
        opened.append(poptorch.AsynchronousDataAccessor(dataset, **FORK, **settings))
        return opened[-1]

    yield read
    for each in opened:
        each.terminate()


def test_leaving_a_loop_early_begins_again_at_the_beginning(accessor):
    opened = accessor(data.Range(9, "tensor"))
    for stop in (3, 0, 7):
        seen = list(itertools.takewhile(lambda n, stop=stop: n <= stop, map(int, opened)))
        assert seen == list(range(stop + 1))
    assert [int(n) for n in opened] == list(range(9))


def test_items_keep_their_form_and_failures_surface(accessor):
    first = next(iter(accessor(data.Range(2, "dict"))))
    assert {key: value.tolist() for key, value in first.items()} == {"x": [0.0, 0.0], "y": 0}
    assert isinstance(next(iter(accessor(data.Range(2, "tensor")))), torch.Tensor)
    failing = accessor(data.Failing())
    with pytest.raises(AssertionError, match=r"(?s)error occurred in the data fetcher.*no such"):
        list(failing)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("worker_size", [1, 3, 4])
def test_rebatching_gives_full_batches_and_one_short_one_if_kept(worker_size, drop_last):
    loader = load(
        options(deviceIterations=2),
        data.Range(21),
        4,
        drop_last=drop_last,
        mode=DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=worker_size,
    )
    batches = [batch[1].tolist() for batch in loader]
    loader.terminate()
    expected = [list(range(8)), list(range(8, 16))]
    assert batches == expected + ([] if drop_last else [list(range(16, 21))])
    assert len(loader) == len(batches)


# --- observing


def test_printing_writes_a_tensor_and_its_gradient_with_titles_to_stderr(capfd):
    def forward(self, x):
        y = poptorch.ipu_print_tensor(x * self.weight, "product")
        return poptorch.identity_loss(y * 3, "sum")

    wrapped = trainer(Calls(forward))
    x = torch.tensor([1.0, 2.0])
    wrapped.compile(x)
    assert capfd.readouterr() == ("", "")
    wrapped(x)
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == ["product", "product_gradient"]
    assert re.findall(r"\d\.\d+", err) == ["2.0000", "4.0000", "3.0000", "3.0000"]


def _loop(x):
    return poptorch.for_loop(3, lambda y: [y * 2], [x])


def _branch(x):
    return poptorch.cond(x.sum() > 0, lambda y: [y + 1], [x], lambda y: [y - 1], [x])


@pytest.mark.parametrize(
    ("function", "positive", "negative"), [(_loop, 8.0, -8.0), (_branch, 2.0, -2.0)]
)
def test_loops_and_branches_return_lists_and_do_not_train(function, positive, negative):
    kinds = []
    wrapped = inference(lambda x: (kinds.append(type(function(x))), function(x))[1])
    for call in (wrapped, function):
        for x, expected in ((torch.ones(2), positive), (-torch.ones(2), negative)):
            output = call(x)
            assert isinstance(output, list)
            assert [value.tolist() for value in output] == [[expected] * 2]
    assert kinds == [list]
    with pytest.raises(poptorch.Error, match=r"poptorch\.\w+\(\) is only supported in inference\."):
        trainer(Calls(lambda self, x: F.mse_loss(function(x * self.weight)[0], x)))(X)


def test_hooks_run_in_order_for_every_compilation_until_removed():
    seen = []
    handles = [
        register(lambda word=f"{kind} {index}": seen.append(word))
        for kind, register in (
            ("pre", poptorch.registerPreCompileHook),
            ("post", poptorch.registerPostCompileHook),
        )
        for index in (1, 2)
    ]

    def compiled():
        seen.clear()
        wrapped = inference(lambda x: (seen.append("forward"), x + 1)[1])
        wrapped(X)
        wrapped(X)
        return list(seen)

    assert compiled() == ["pre 1", "pre 2", "forward", "post 1", "post 2"]
    handles[0].remove()
    handles[3].remove()
    assert compiled() == ["pre 2", "forward", "post 1"]
    handles[1].remove()
    handles[2].remove()
    assert compiled() == ["forward"]
    for register in (poptorch.registerPreCompileHook, poptorch.registerPostCompileHook):
        with pytest.raises(RuntimeError, match="must be callable"):
            register("no function")


def test_counters_have_a_moment_for_every_transfer_in_order():
    iterations, accumulation, replicas = 3, 2, 2
    wrapped = trainer(
        scorer(),
        deviceIterations=iterations,
        gradientAccumulation=accumulation,
        replicationFactor=replicas,
        outputMode=OutputMode.All,
    )
    kinds = ("input", "input_complete", "output", "output_complete")
    assert wrapped.getPerfCounters() == {kind: [[]] for kind in kinds}
    wrapped(*rows(12))
    counters = wrapped.getPerfCounters()
    steps = iterations * accumulation * replicas
    for kind in kinds:  # two inputs, two outputs
        assert [len(moments) for moments in counters[kind]] == [steps, steps]
    for tensor in (0, 1):
        for moments in zip(*(counters[kind][tensor] for kind in kinds), strict=True):
            assert list(moments) == sorted(moments)
    whole = wrapped.getLatency()
    for name in ("getHostIpuLatency", "getComputeLatency", "getIpuHostLatency", "getLatency"):
        shortest, longest, average = getattr(wrapped, name)()
        assert 0 < shortest <= average <= longest <= whole[1]


# --- files


def momentum(model):
    return poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_a_training_wrapper_goes_on_from_its_file(tmp_path):
    path = tmp_path / "missing" / "parents" / "model.poptorch"
    model = scorer()
    wrapped = trainer(model, momentum(model))
    wrapped.compileAndExport(str(path), *rows(4))
    for seed in (1, 2):
        wrapped(*rows(4, seed))
    later = tmp_path / "later"
    wrapped.save(str(later))
    loaded = poptorch.load(str(path))
    for seed in (1, 2):
        loaded(*rows(4, seed))
    follower = poptorch.load(str(later))
    assert torch.equal(weights(loaded.model), weights(model))
    assert torch.equal(weights(follower.model), weights(model))
    for seed in (3, 4):
        results = [each(*rows(4, seed)) for each in (wrapped, loaded, follower)]
        assert all(torch.equal(loss, results[0][0]) for loss, _ in results)
    assert torch.equal(weights(follower.model), weights(model))


def test_inference_comes_back_with_or_without_its_model(tmp_path, caplog):
    wrapped = poptorch.inferenceModel(scorer(), options(deviceIterations=2))
    expected = wrapped(*rows(4))[1]
    wrapped.save(str(tmp_path))  # a directory
    assert "directory" in caplog.text
    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    assert torch.equal(loaded(*rows(4))[1], expected)
    bare = tmp_path / "bare"
    wrapped.save(str(bare), export_model=False)
    with pytest.raises(AssertionError, match=r"export_model=False"):
        poptorch.load(str(bare))
    other = poptorch.inferenceModel(scorer(), options(deviceIterations=2))
    other.loadExecutable(str(bare))
    assert torch.equal(other(*rows(4))[1], expected)


def test_wrong_files_and_other_versions_are_refused(tmp_path, monkeypatch):
    text, exported = tmp_path / "text", tmp_path / "exported"
    text.write_text("not an executable")
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        trainer(scorer()).save(str(exported))
    trainer(scorer()).compileAndExport(str(exported), *rows(4))
    with pytest.raises(AssertionError):
        trainer(scorer()).compileAndExport(str(text / "below a file"), *rows(4))
    with pytest.raises(poptorch.Error, match="Invalid file"):
        trainer(scorer()).loadExecutable(str(text))
    monkeypatch.setattr("poptorch._files.saved_file.__version__", "0.1")  # as if by another release
    with pytest.raises(AssertionError, match=r"Invalid file .*exported.*PopTorch version mismatch"):
        poptorch.load(str(exported))
    with pytest.raises(poptorch.Error, match="version mismatch"):
        trainer(scorer()).loadExecutable(str(exported))


# --- types and random numbers


def test_half_inputs_and_float_weights_give_half_and_other_operators_promote():
    x = torch.randn(3, 4)
    layer = nn.Linear(4, 2)
    wrapped = poptorch.inferenceModel(layer, options())
    output = wrapped(x.half())
    assert output.dtype is torch.float16
    torch.testing.assert_close(output.float(), layer(x).detach(), rtol=1e-2, atol=1e-3)
    assert poptorch.inferenceModel(nn.Linear(4, 2).half(), options())(x).dtype is torch.float32
    sums = inference(lambda h, f: (h + f, h * f, h + h, h * 2.0))(x.half(), x)
    kinds = [torch.float32, torch.float32, torch.float16, torch.float16]
    assert [value.dtype for value in sums] == kinds


def dropping(**settings):
    return inference(lambda x: F.dropout(x, 0.5), **settings)


def test_random_numbers_follow_the_seed_and_differ_between_replicas():
    x = torch.ones(4, 64)

    def drawn(seed):
        wrapped = dropping(randomSeed=seed, replicationFactor=2, deviceIterations=2)
        return [wrapped(x) for _ in range(2)]

    first = drawn(3)
    assert all(map(torch.equal, first, drawn(3)))
    assert not torch.equal(first[0], drawn(4)[0])
    masks = {tuple(row.tolist()) for result in first for row in result}
    assert len(masks) == 8  # every row of every call is of another replica or iteration


def test_the_state_of_random_numbers_is_saved_and_restored():
    wrapped, other = dropping(randomSeed=3), dropping(randomSeed=8)
    x = torch.ones(4, 64)
    wrapped(x)
    state = wrapped.rng_state
    expected = [wrapped(x) for _ in range(2)]
    other.compile(x)
    for each in (wrapped, other):
        each.rng_state = state
        assert all(torch.equal(each(x), value) for value in expected)
    assert isinstance(state, list)
    assert state[0] == 3
