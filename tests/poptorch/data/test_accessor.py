"""The process that reads ahead: data, epochs, failures, and that it never outlives its owner."""

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import textwrap
import weakref
from pathlib import Path

import pytest
import torch

import poptorch
from helpers import datasets as data
from helpers.warm_python import python
from poptorch._data.accessor import AsynchronousDataAccessor
from poptorch._data.dataloader import DataLoader

pytestmark = [
    pytest.mark.usefixtures("_spawns"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
Strategy = poptorch.SharingStrategy
LIMIT_S = 120


@contextlib.contextmanager
def accessor(dataset, **kwargs):
    opened = AsynchronousDataAccessor(dataset, **{"sharing_strategy": Strategy.Fork, **kwargs})
    try:
        yield opened
    finally:
        opened.terminate()


def numbers(elements):
    return [int(element) for element in elements]


@pytest.fixture
def custom_pairs(monkeypatch):
    monkeypatch.setattr("poptorch._forward.structure._parsers", {data.Pair: data.PairParser()})


# Data


@pytest.mark.parametrize("strategy", list(Strategy))
def test_strategies_give_the_same_elements(strategy):
    with accessor(data.Range(4, "tensor"), sharing_strategy=strategy) as opened:
        assert len(opened) == 4
        assert numbers(opened) == numbers(opened) == [0, 1, 2, 3]


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_parser_that_cannot_be_sent_does_not_stop_other_data(strategy, custom_pairs):
    class Local(data.Pair):
        """A type that no other process can import."""

    poptorch.registerCustomArgParser(Local, data.PairParser())
    with accessor(data.Range(2, "tensor"), sharing_strategy=strategy) as opened:
        assert numbers(opened) == [0, 1]


def test_tuples_come_back_as_lists():
    with accessor(data.Range(2, "tuple")) as opened:
        x, y = next(opened)
        assert isinstance(next(opened), list)
        assert (x.tolist(), int(y)) == ([0, 0], 0)


def test_dicts_may_change_the_order_of_keys():
    one, two = torch.tensor(1), torch.tensor(2)
    with accessor(data.Sequence({"a": one, "b": two}, {"b": two, "a": one})) as opened:
        assert [int(element["a"]) for element in opened] == [1, 1]


@pytest.mark.parametrize("strategy", [Strategy.Fork, Strategy.ForkServer])
def test_custom_types_keep_what_is_not_a_tensor(custom_pairs, strategy):
    dataset = data.Batches(2, 2, form="custom")
    with accessor(dataset, sharing_strategy=strategy) as opened:
        assert [(pair.y.tolist(), pair.note) for pair in opened] == [([0, 1], "0"), ([2, 3], "2")]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(True),
        torch.zeros(0, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, requires_grad=True),
    ],
    ids=["bool", "empty", "strided", "bfloat16", "complex", "grad"],
)
def test_all_kinds_of_tensors(tensor):
    with accessor(data.Sequence((torch.ones(5, dtype=torch.int8), tensor))) as opened:
        result = next(opened)[1]
        assert result.dtype == tensor.dtype
        assert torch.equal(result, tensor.detach())


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 8])
def test_elements_stay_valid(buffer_size):
    with accessor(data.Range(50, "tensor"), buffer_size=buffer_size) as opened:
        assert numbers(list(opened)) == list(range(50))


def test_slots_are_used_again_once_their_tensors_are_gone():
    with accessor(data.Range(200, "tensor")) as opened:
        addresses = {element.data_ptr() for element in opened}
    assert len(addresses) <= 3


def test_elements_outlive_the_accessor():
    with accessor(data.Range(2, "tensor")) as opened:
        element = next(opened)
    del opened
    assert int(element) == 0


# Rebatching


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict", "custom"])
def test_rebatching_drops_the_rest(custom_pairs, form):
    with accessor(data.Batches(3, 5, 1, 2, form=form), rebatched_size=4) as opened:
        for _ in range(2):
            ys = []
            for element in opened:
                y = {"tuple": lambda e: e[1], "dict": lambda e: e["y"], "custom": lambda e: e.y}
                ys.append(y.get(form, lambda e: e)(element).tolist())
            assert ys == [[0, 1, 2, 3], [4, 5, 6, 7]]


# Epochs


@pytest.mark.parametrize("indefinitely", [False, True])
@pytest.mark.parametrize("preload", [False, True])
def test_every_epoch_begins_at_the_beginning(indefinitely, preload):
    options = {"load_indefinitely": indefinitely, "early_preload": preload}
    with accessor(data.Range(7, "tensor"), **options) as opened:
        for _ in range(3):
            assert numbers(opened) == list(range(7))
        assert next(opened, None) is None


@pytest.mark.parametrize("indefinitely", [False, True])
@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("rebatched_size", [None, 2])
def test_leaving_a_loop_restarts(indefinitely, preload, rebatched_size):
    options = {"load_indefinitely": indefinitely, "early_preload": preload}
    with accessor(data.Batches(*[2] * 9), rebatched_size=rebatched_size, **options) as opened:
        for stop in (0, 1, 5, 8):
            assert next(element for element in opened if element[0] == 2 * stop) is not None
        iter(opened)
        assert [int(element[0]) for element in opened] == list(range(0, 18, 2))


def test_randomness_does_not_depend_on_how_far_the_worker_ran_ahead():
    torch.manual_seed(11)
    with accessor(data.Random()) as opened:
        list(opened)
        expected = [float(x) for x in opened]
    with accessor(data.Random(), early_preload=True, buffer_size=8) as opened:
        next(opened)
        assert [float(x) for x in opened] == expected


# Mistakes and failures


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (data.Sequence(), "worker thread failed to start.*The Dataset is empty"),
        (data.Sequence((torch.ones(1), [torch.ones(1)])), "flat 1D container of .* 1 is a list"),
        (data.Sequence({"x": torch.ones(1), "y": "text"}), "element 'y' is a str"),
        (data.Sequence(5), "a type with a custom parser, not a int"),
        (data.Sequence(torch.ones(2).to_sparse()), "takes dense tensors"),
    ],
    ids=["empty", "nested", "text", "number", "sparse"],
)
def test_a_worker_that_cannot_start(dataset, words):
    with pytest.raises(poptorch.Error, match=f"(?s){words}") as raised:
        AsynchronousDataAccessor(dataset, sharing_strategy=Strategy.Fork)
    assert "guard" not in str(raised.value)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_dataset_that_does_not_pickle(strategy):
    dataset = data.Sequence(torch.ones(1))
    dataset.function = lambda: None
    if strategy is Strategy.Fork:
        with accessor(dataset) as opened:
            assert len(list(opened)) == 1
        return
    with pytest.raises(poptorch.Error, match=r"(?s)failed to start.*must pickle"):
        AsynchronousDataAccessor(dataset, sharing_strategy=strategy)


def test_a_loader_with_a_short_batch_needs_rebatching():
    loader = DataLoader(poptorch.Options(), data.Range(4), batch_size=2, drop_last=False)
    with pytest.raises(AssertionError, match="set drop_last=True, or rebatched_size"):
        AsynchronousDataAccessor(loader)


@pytest.mark.parametrize(
    ("dataset", "kwargs", "words"),
    [
        (data.Failing(), {}, "Traceback.*no such picture"),
        (data.Failing(kill=True), {}, "its process died without a report, exit code -9"),
        (data.Batches(2, 2, 1), {}, r"shapes and types of the first: element '' is a tensor \[1\]"),
        (data.Sequence(torch.ones(1), torch.ones(1).int()), {}, "torch.int32, the first was"),
        (data.Sequence(torch.ones(1), [torch.ones(1)]), {}, "structure of the first"),
        (data.Sequence(torch.ones(1, 1), torch.ones(2, 2)), {"rebatched_size": 9}, "shapes and"),
        (data.Batches(2), {"rebatched_size": 9}, "no element of 9 rows"),
    ],
    ids=["raises", "killed", "short", "dtype", "kind", "columns", "too few rows"],
)
def test_a_failure_is_reported_where_the_data_is_used(dataset, kwargs, words):
    with accessor(dataset, **kwargs) as opened:
        for read in (list, list, next):  # also when asked again
            text = f"(?s)error occurred in the data fetcher.*{words}"
            with pytest.raises(AssertionError, match=text):
                read(opened)


# Life and death of the process


def process_of(opened):
    process = opened._process
    assert process.is_alive()
    return process


def test_terminating():
    with accessor(data.Range(3)) as opened:
        process = process_of(opened)
        iterator = iter(opened)
        opened.terminate()
        assert process.exitcode == 0
        for action in (lambda: next(iterator), lambda: iter(opened)):
            with pytest.raises(poptorch.Error, match="was terminated"):
                action()


def test_deleting_without_waiting_for_the_garbage_collector():
    gc.disable()
    try:
        loader = DataLoader(
            poptorch.Options(),
            data.Range(9),
            num_workers=1,
            mode=poptorch.DataLoaderMode.Async,
            async_options={"sharing_strategy": Strategy.Fork},
        )
        process, alive = process_of(loader._accessor), weakref.ref(loader._accessor)
        for _ in loader:
            break
        del loader
        assert alive() is None
        assert process.exitcode == 0
    finally:
        gc.enable()


def test_a_forked_process_forks_the_data_sets_own(monkeypatch):
    """Where the program has a fork server, as it has by default with Python 3.14."""
    with accessor(data.Range(1), sharing_strategy=Strategy.ForkServer):
        monkeypatch.setattr("poptorch._data.accessor._start_method", lambda: "forkserver")
        loader = DataLoader(
            poptorch.Options(),
            data.Range(2),
            num_workers=1,
            mode=poptorch.DataLoaderMode.Async,
            async_options={"sharing_strategy": Strategy.Fork},
        )
        try:
            assert len(list(loader)) == 2
        finally:
            loader.terminate()


def test_a_fork_of_the_program_returns_no_slots():
    with accessor(data.Range(9, "tensor")) as opened:
        element = next(opened)
        child = os.fork()
        if child == 0:
            del element
            os._exit(0)
        os.waitpid(child, 0)
        assert opened._lender._lent
        assert int(element) == 0


def test_a_copy_of_a_loader_reads_by_itself():
    options = {"sharing_strategy": Strategy.Fork}
    mode = poptorch.DataLoaderMode.Async
    loader = DataLoader(poptorch.Options(), data.Range(2), mode=mode, async_options=options)
    copied = pickle.loads(pickle.dumps(loader))  # noqa: S301 - made here
    loader.terminate()
    assert [int(y) for _, y in copied] == [0, 1]
    copied.terminate()


SCRIPT = """
    import os, sys
    sys.path[:0] = {path!r}
    import poptorch
    from poptorch._data.dataloader import DataLoader
    from helpers.datasets import Range

    if __name__ == "__main__":
        loader = DataLoader(
            poptorch.Options(), Range(1000), 2, num_workers=2,
            mode=poptorch.DataLoaderMode.Async, async_options=dict(
                sharing_strategy=poptorch.SharingStrategy({strategy}), early_preload=True))
        for batch in loader:
            print("batch", os.getpid(), flush=True)
            {action}
"""


def run_script(directory, strategy, action):
    path = [str(Path(poptorch.__file__).parents[1]), str(Path(__file__).parents[2])]
    script = directory / "program.py"
    text = textwrap.dedent(SCRIPT.format(path=path, strategy=int(strategy), action=action))
    script.write_text(text)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    program = subprocess.Popen([python(), "-W", "ignore", str(script)], **pipes)
    # Every process of the program inherits its output, which ends when the last one is gone.
    output, problems = program.communicate(timeout=LIMIT_S)
    segments = [name for name in os.listdir("/dev/shm") if f"_{program.pid}_" in name]
    assert segments == []
    return program.returncode, output.splitlines(), problems


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
@pytest.mark.parametrize(
    ("strategy", "action", "code"),
    [
        (Strategy.Fork, "break", 0),
        (Strategy.Fork, "raise SystemExit(3)", 3),
        (Strategy.Fork, "os.kill(os.getpid(), 9)", -signal.SIGKILL),
        (Strategy.ForkServer, "break", 0),
        (Strategy.ForkServer, "os.kill(os.getpid(), 9)", -signal.SIGKILL),
        (Strategy.FileSystem, "os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
    ids=lambda value: value.name if isinstance(value, Strategy) else None,
)
def test_nothing_outlives_the_program(tmp_path, strategy, action, code):
    done, lines, problems = run_script(tmp_path, strategy, action)
    assert (done, len(lines)) == (code, 1), problems
    assert problems == ""


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, poptorch\n"
        "rows = torch.utils.data.TensorDataset(torch.ones(4, 1))\n"
        "poptorch.DataLoader(poptorch.Options(), rows, mode=poptorch.DataLoaderMode.Async,\n"
        "    async_options={'sharing_strategy': poptorch.SharingStrategy.SharedMemory})\n"
    )
    done = subprocess.run([python(), script], capture_output=True, text=True)
    assert "process died without a report, exit code 1" in done.stderr
    assert 'needs a guard: if __name__ == "__main__": main()' in done.stderr


def test_elements_before_a_failure_arrive():
    with accessor(data.Failing()) as opened:
        assert numbers([next(opened), next(opened)]) == [0, 1]


def test_rows_must_agree_for_rebatching():
    uneven = data.Sequence((torch.ones(2), torch.ones(3)))
    with pytest.raises(poptorch.Error, match="same number of rows"):
        AsynchronousDataAccessor(uneven, sharing_strategy=Strategy.Fork, rebatched_size=2)
