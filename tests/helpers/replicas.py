"""One of two processes that train in DistributedDataParallel, plain and by ``abele.compile``.

    python -m helpers.replicas RANK FOLDER CASE ...

Writes what each case found to ``FOLDER/RANK.json``. Cases are those of ``compiled_functions``.
"""

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from helpers.compiled_functions import same_as_plain

CALLS = 6


def network(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), *more, nn.ReLU(), nn.Linear(8, 1))


class Task:
    """A model in DistributedDataParallel with its optimizer, and this process's batches."""

    def __init__(self, model: nn.Module | None = None, **options):
        self.model = DistributedDataParallel(network() if model is None else model, **options)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def batch(self, number: int, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
        x = torch.randn(rows, 5, generator=generator)
        return x, x.sum(1, keepdim=True)

    def add_and_update(self, loss: torch.Tensor) -> torch.Tensor:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def update(self, loss: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


def step_of(task: Task, wrap):
    @wrap
    def step(x, y):
        return task.update(mse_loss(task.model(x), y))

    return step


def plain(wrap, **options):
    task = Task(**options)
    step = step_of(task, wrap)
    return lambda i: step(*task.batch(i)), lambda: task


def views_of_buckets(wrap):
    return plain(wrap, gradient_as_bucket_view=True)


def several_buckets(wrap):
    return plain(wrap, bucket_cap_mb=0.0001)


def all_used_of_several_buckets(wrap):
    return plain(wrap, bucket_cap_mb=0.0001, find_unused_parameters=True)


def statistics_of_rank_0(wrap):
    """BatchNorm whose statistics differ between processes until they are broadcast."""
    task = Task(network(nn.BatchNorm1d(8)))
    step = step_of(task, wrap)

    @wrap
    @torch.no_grad()
    def evaluate(x, y):
        return mse_loss(task.model(x), y)

    def call(i):
        task.model.train()
        loss = step(*task.batch(i))
        task.model.eval()
        return loss, evaluate(*task.batch(i + 100))

    return call, lambda: task


def own_statistics(wrap):
    task = Task(network(nn.BatchNorm1d(8)), broadcast_buffers=False)
    step = step_of(task, wrap)
    return lambda i: step(*task.batch(i)), lambda: task


def accumulated_outside(wrap):
    """Two calls in ``no_sync`` before each that exchanges."""
    task = Task(network(nn.BatchNorm1d(8)))

    @wrap
    def add(x, y):
        loss = mse_loss(task.model(x), y)
        loss.backward()
        return loss

    @wrap
    def step(x, y):
        return task.add_and_update(mse_loss(task.model(x), y))

    def call(i):
        with task.model.no_sync():
            losses = [add(*task.batch(10 * i + j)) for j in range(2)]
        return [*losses, step(*task.batch(i))]

    return call, lambda: task


def accumulated_inside(wrap):
    task = Task(network(nn.BatchNorm1d(8)))

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        with task.model.no_sync():
            mse_loss(task.model(x[:2]), y[:2]).backward()
        loss = mse_loss(task.model(x[2:]), y[2:])
        loss.backward()
        task.optimizer.step()
        return loss

    return lambda i: step(*task.batch(i)), lambda: task


def one_loss_of_two_forwards(wrap):
    task = Task()

    @wrap
    def step(x, y):
        return task.update(mse_loss(task.model(x), y) + task.model(-x).square().mean())

    return lambda i: step(*task.batch(i)), lambda: task


def two_models(wrap):
    """A generator and a discriminator, whose exchanges alternate."""
    task, other = Task(nn.Linear(5, 5)), Task()

    @wrap
    def step(x, y):
        made = task.model(x)
        loss = other.update(mse_loss(other.model(made.detach()), y))
        other.optimizer.zero_grad()
        for param in other.model.parameters():
            param.requires_grad_(False)
        task.update(other.model.module(made).mean())
        for param in other.model.parameters():
            param.requires_grad_(True)
        return loss

    return lambda i: step(*task.batch(i)), lambda: (task, other)


def other_shapes(wrap):
    """The last batch of process 1 is short, so it has no program where process 0 has one."""
    task = Task(network(nn.BatchNorm1d(8)))
    step = step_of(task, wrap)
    return lambda i: step(*task.batch(i, 3 if i >= 3 and dist.get_rank() else 4)), lambda: task


def one_is_plain(wrap):
    """Process 1 never has a program."""
    task = Task()
    step = step_of(task, wrap if dist.get_rank() == 0 else lambda function: function)
    return lambda i: step(*task.batch(i)), lambda: task


def uneven_numbers_of_batches(wrap, **options):
    """Process 1 has no batch in some calls, and joins."""
    task = Task(network(nn.BatchNorm1d(8)), **options)
    step = step_of(task, wrap)

    def call(i):
        with Join([task.model]):
            return [step(*task.batch(10 * i + j)) for j in range(2 + dist.get_rank())]

    return call, lambda: task


def uneven_and_looked_for(wrap):
    return uneven_numbers_of_batches(wrap, find_unused_parameters=True)


def after_a_forward_alone(wrap, **options):
    """The hooks of gradients wait for a backward while another shape is captured."""
    task = Task(**options)
    step = step_of(task, wrap)

    def call(i):
        if i >= 2:
            task.model(task.batch(i)[0])
        return step(*task.batch(i, 4 if i < 3 else 3))

    return call, lambda: task


def after_a_forward_that_looks(wrap):
    return after_a_forward_alone(wrap, find_unused_parameters=True)


def kept_gradients(wrap):
    task = Task()

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        loss = mse_loss(task.model(x), y)
        loss.backward()
        return loss

    def call(i):
        loss = step(*task.batch(i))
        params: list[Any] = [*task.model.parameters()]
        gradients = [param.grad.clone() for param in params]
        task.optimizer.step()
        return loss, gradients

    return call, lambda: task


class Branches(nn.Module):
    """A model one of whose layers some steps leave out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = network(), network()

    def forward(self, x, both):
        return self.first(x) + self.second(x) if both else self.first(x)


def unused_parameters(wrap):
    """A layer that each process leaves out in other steps."""
    task = Task(Branches(), find_unused_parameters=True)

    @wrap
    def step(x, y, both):
        return task.update(mse_loss(task.model(x, both), y))

    return lambda i: step(*task.batch(i), i < 3 or (i + dist.get_rank()) % 2 == 0), lambda: task


def looked_for_and_accumulated(wrap):
    """A layer that is used in ``no_sync`` only, in some steps."""
    task = Task(Branches(), find_unused_parameters=True)

    @wrap
    def add(x, y):
        mse_loss(task.model(x, True), y).backward()

    @wrap
    def step(x, y, both):
        return task.add_and_update(mse_loss(task.model(x, both), y))

    def call(i):
        with task.model.no_sync():
            add(*task.batch(10 * i))
        return step(*task.batch(i), i < 3)

    return call, lambda: task


def static_graph(wrap):
    return plain(wrap, static_graph=True)


def unused_and_not_looked_for(wrap):
    """A layer that no step uses but the first one, which torch refuses at the third one."""
    task = Task(Branches())

    @wrap
    def step(x, y, both):
        return task.update(mse_loss(task.model(x, both), y))

    return lambda i: step(*task.batch(i), i == 0), lambda: task


def frozen_layer(wrap):
    model = network()
    model[0].requires_grad_(False)
    return plain(wrap, model=model)


def communication_hook(wrap):
    call, state = plain(wrap)
    state().model.register_comm_hook(None, fp16_compress_hook)
    return call, state


def fully_sharded(wrap):
    from torch.distributed.fsdp import fully_shard  # half a second

    model: Any = fully_shard(network(), mesh=init_device_mesh("cpu", (2,)))

    @wrap
    def step(x):
        return model(x).detach()

    return lambda i: step(torch.ones(2, 5)), lambda: None


def exchanged_by_hand(wrap):
    task = Task()

    @wrap
    def step(x, y):
        loss = task.update(mse_loss(task.model(x), y))
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total

    return lambda i: step(*task.batch(i)), lambda: task


PROGRAMS = (
    *(plain, views_of_buckets, several_buckets, statistics_of_rank_0, own_statistics),
    *(accumulated_outside, accumulated_inside, one_loss_of_two_forwards, two_models, frozen_layer),
    *(unused_parameters, looked_for_and_accumulated, all_used_of_several_buckets),
    *(uneven_and_looked_for, after_a_forward_that_looks),
    *(other_shapes, one_is_plain, uneven_numbers_of_batches, after_a_forward_alone, kept_gradients),
)
EAGER = (
    *(unused_and_not_looked_for, static_graph, communication_hook),
    *(fully_sharded, exchanged_by_hand),
)
CASES = {each.__name__: each for each in (*PROGRAMS, *EAGER)}


def found(case) -> dict[str, object]:
    """Return whether a case agrees with plain PyTorch, and how it ran."""
    try:
        made = same_as_plain(case, CALLS, os.environ["ABELE_TARGET"])
    except Exception:  # noqa: BLE001 - the other process has to go on
        return {"failed": traceback.format_exc()}
    return {
        "programs": sum(len(each.programs) for each in made),
        "calls": sum(program.calls for each in made for program in each.programs),
        "eager": [each.eager for each in made if each.eager],
    }


def main(rank: int, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/store", limit, rank=rank, world_size=2)
    results = {name: found(CASES[name]) for name in names}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
