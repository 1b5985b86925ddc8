"""Torch's names behind ``DistributedDataParallel`` exist and do what we rely on, in one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from abele._torch import replicas


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model(**options) -> DistributedDataParallel:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return DistributedDataParallel(network, **options)


def backward(replica: DistributedDataParallel) -> None:
    replica(torch.randn(5, 3)).sum().backward()


@pytest.mark.usefixtures("group")
def test_the_exchange_of_one_process_returns_its_gradients():
    replica = model()
    backward(replica)
    params = replicas.exchanged_params(replica)
    assert {*map(id, params)} == {*map(id, replica.parameters())}
    before = [param.grad for param in params]
    for _ in range(3):  # buckets are made again after the first one
        grads = [torch.randn_like(param) for param in params]
        replicas.begin_forward(replica, replicas.buffers_of(replica), grad=True, sync=True)
        found = replicas.averaged(replica, params, grads)
        assert all(map(torch.equal, grads, found))
        assert [param.grad for param in params] == before
    backward(replica)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("grad", "sync"), [(True, False), (False, True)])
def test_a_forward_without_exchange_is_noted_and_nothing_else(grad, sync):
    replica = model()
    backward(replica)
    before = {**vars(replica), "require_forward_param_sync": False}
    replicas.begin_forward(replica, replicas.buffers_of(replica), grad=grad, sync=sync)
    assert {*vars(replica)} == {*before}
    changed = {name for name, value in vars(replica).items() if value is not before[name]}
    assert changed <= replicas.CHANGING


@pytest.mark.usefixtures("group")
def test_settled_hooks_exchange_nothing():
    replica = model()
    backward(replica)
    replica(torch.randn(5, 3))  # without a backward
    assert replicas.settle(replica)
    (before, *_) = (param.grad for param in replica.parameters())
    replica.module(torch.randn(5, 3)).sum().backward()  # no hook acts on it
    assert replicas.settle(replica)
    assert next(replica.parameters()).grad is before
    backward(replica)


@pytest.mark.usefixtures("group")
def test_a_model_that_has_exchanged_nothing_may_await_its_first_backward():
    replica = model()
    assert not replicas.settle(replica)
    with replica.no_sync():
        backward(replica)
    assert replicas.settle(replica)


@pytest.mark.usefixtures("group")
def test_an_unfinished_exchange_is_torchs_error():
    replica = model()
    replica(torch.randn(5, 3))
    replica.module[0](torch.randn(5, 3)).sum().backward()
    with pytest.raises(RuntimeError, match="finished reduction"):
        replicas.settle(replica)


def _buffer_hook(state, buffers):
    """A hook that leaves buffers alone."""


class Other(DistributedDataParallel):
    """A wrapper with a forward of its own."""

    def forward(self, x):
        return self.module(x)


@pytest.mark.usefixtures("group")
def test_settings_that_no_program_follows():
    assert replicas.refused(model()) is None
    assert replicas.refused(model(gradient_as_bucket_view=True)) is None
    assert replicas.refused(Other(nn.Linear(2, 2))) == "a forward of its own"
    assert replicas.refused(model(find_unused_parameters=True)) is None
    unused = replicas.refused(model(find_unused_parameters=True, gradient_as_bucket_view=True))
    assert unused == "find_unused_parameters=True and gradients that are views, or skipped"
    assert replicas.refused(model(static_graph=True)) == "static_graph=True"
    replica = model()
    replica._register_buffer_comm_hook(None, _buffer_hook)
    assert replicas.refused(replica) == "a communication hook"
    replica = model()
    vars(next(replica.parameters()))["_in_backward_optimizers"] = []
    assert replicas.refused(replica) == "an optimizer inside backward"


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated")
def test_buffers_that_are_broadcast():
    replica = model()
    assert list(map(id, replicas.buffers_of(replica))) == list(map(id, replica.buffers()))
    assert replicas.buffers_of(model(broadcast_buffers=False)) == []


@pytest.mark.usefixtures("group")
def test_marks_of_used_parameters_stay_as_they_are():
    replica = model(find_unused_parameters=True)
    backward(replica)
    assert replicas.settle(replica)
    used = replicas._used_maps[replica]
    assert not used.any()
    with replica.no_sync():
        backward(replica)
        assert used.all()
        assert replicas.settle(replica)
        assert used.all()
        used.zero_()
        with replicas.Unmarked():
            backward(replica)
    assert not used.any()
