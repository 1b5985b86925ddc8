"""`horovod.torch` in programs that import popdist, where Horovod is not installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import popdist
from helpers import horovod_program, instances
from helpers.warm_python import python
from popdist import _instances

_SPEC = importlib.util.find_spec("horovod")
pytestmark = pytest.mark.skipif(
    _SPEC is None or _SPEC.origin != str(_instances._FOLDER / "__init__.py"),
    reason="Horovod itself is installed",
)


@pytest.fixture
def hvd():
    """The module, as a program with one instance has it."""
    import horovod.torch  # pyright: ignore[reportMissingImports]

    yield horovod.torch
    horovod.torch.shutdown()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two instances computed, in their order."""
    folder = tmp_path_factory.mktemp("horovod")
    instances.run(Path(horovod_program.__file__), [str(folder)], 2)
    return [torch.load(folder / f"{index}.pt", weights_only=True) for index in range(2)]


EQUAL_ON_ALL = {
    "mean": torch.tensor([1.5, 6.0]),
    "sum": torch.tensor([3.0, 12.0]),
    "grouped": [torch.tensor(1.5, dtype=torch.half), torch.tensor([1.5, 6.0])],
    "of integers": torch.tensor(3),
    "smallest": torch.tensor([1.0, 4.0]),
    "product": torch.tensor(12),
    "largest, in place": torch.tensor([2.0, 8.0]),
    "rows": torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]),
    "scalars": torch.tensor([0.0, 1.0]),
    "of instance 1": torch.tensor([2.0, 8.0]),
    "object": {"rank": 1},
    "objects": [0, 1],
}


@pytest.mark.parametrize("name", EQUAL_ON_ALL)
def test_instances_agree_on_metrics(both, name):
    for one in both:
        torch.testing.assert_close(one["metrics"][name], EQUAL_ON_ALL[name], rtol=0, atol=0)


def test_instances_know_their_places(both):
    assert [one["metrics"]["places"] for one in both] == [[0, 2, 0], [1, 2, 1]]


def test_nothing_is_exchanged_before_init(both):
    for one in both:
        assert one["early"] == "Horovod has not been initialized; use hvd.init()."


def test_first_weights_and_optimizer_state_are_those_of_the_root(both):
    torch.manual_seed(0)
    expected = torch.nn.Linear(3, 1).weight.detach()
    for one in both:
        assert torch.equal(one["trained"]["first"], expected)
        assert torch.equal(one["trained"]["momentum"], torch.zeros(1, 3))


def test_averages_go_between_the_exchanges_of_a_training_wrapper(both):
    first, second = (one["trained"] for one in both)
    assert torch.equal(first["weight"], second["weight"])
    assert torch.equal(first["losses"], second["losses"])
    assert not torch.equal(first["weight"], first["first"])


def test_a_single_instance_keeps_its_values(hvd):
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    assert not hvd.is_initialized()
    hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (0, 1, 0)
    for result in (hvd.allreduce(value), hvd.broadcast(value, 0), hvd.allgather(value)):
        assert result.tolist() == [1.0, 2.0]
        assert result is not value
        assert not result.requires_grad
    assert hvd.allgather_object("a") == ["a"]
    assert hvd.broadcast_object("a") == "a"
    assert hvd.allreduce_(torch.tensor([-3]), op=hvd.Sum).tolist() == [-3]


def test_what_is_missing_and_wrong_is_said(hvd):
    with pytest.raises(AttributeError, match=r"no 'DistributedOptimizer' here.*Wrappers add up"):
        hvd.DistributedOptimizer(None)
    with pytest.raises(ValueError, match="takes `op` or `average`, not both"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with pytest.raises(popdist.Error, match=r"knows Average, Sum, Min, Max, Product, not op=7"):
        hvd.allreduce(torch.ones(1), op=7)
    with pytest.raises(popdist.Error, match=r"root_rank=1 is no instance: there are 1"):
        hvd.broadcast(torch.ones(1), root_rank=1)


@pytest.mark.parametrize("first", ["popdist", "poptorch"])
def test_an_installed_horovod_is_found_first(tmp_path, first):
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text("NAME = 'the installed one'\n")
    code = f"import {first}; import horovod.torch as hvd; print(hvd.NAME)"
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [python(), "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "the installed one\n"


def test_a_program_may_import_popdist_after_horovod():
    code = (
        "import sys, poptorch; print('popdist' in sys.modules); import horovod.torch as hvd; "
        "import popdist; hvd.init(); print(hvd.size(), hvd.__file__ == popdist_file)"
    )
    file = str(_instances._FOLDER / "torch.py")
    done = subprocess.run(
        [python(), "-c", f"popdist_file = {file!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n1 True\n"
