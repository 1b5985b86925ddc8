"""NumPy arrays and scalars as arguments of compiled functions."""

import numpy as np
import pytest
import torch

from helpers.compiled_functions import Task, batch, compiles, stays_eager


def arrays(i, rows=4):
    x, y = batch(i, rows)
    return x.double().numpy(), y.numpy()


CONVERSIONS = {
    "from_numpy": lambda x, y: (torch.from_numpy(x).float(), torch.from_numpy(y)),
    "from_dlpack": lambda x, y: (torch.from_dlpack(x).float(), torch.from_dlpack(y)),
    "as_tensor": lambda x, y: (torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)),
    "tensor": lambda x, y: (torch.tensor(x, dtype=torch.float32), torch.tensor(y)),
    "asarray": lambda x, y: (torch.asarray(x, dtype=torch.float32), torch.asarray(y)),
    "cast": lambda x, y: (torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.copy())),
    "slices": lambda x, y: (torch.from_numpy(x[1:3, ::2]).float()[:, [0, 1, 2, 0, 1]],
                            torch.from_numpy(y[1:3])),
    "its shape": lambda x, y: (torch.from_numpy(x).float() / x.shape[0] / len(x) / x.size * x.ndim,
                               torch.from_numpy(y)),
}  # fmt: skip


@compiles(programs=1)
def test_arrays_are_inputs(wrap):
    task = Task(torch.optim.Adam)

    @wrap
    def step(x, y):
        losses = [task.loss(*convert(x, y)) for convert in CONVERSIONS.values()]
        return task.update(sum(losses)), losses

    return lambda i: step(*arrays(i)), lambda: task


@compiles(programs=2)
def test_arrays_of_another_size_or_in_a_batch(wrap):
    task = Task()

    @wrap
    def step(data):
        x, y = torch.from_numpy(data["x"]).float(), torch.from_numpy(data["y"])
        return task.update(task.loss(x, y)), data["x"]

    def call(i):
        x, y = arrays(i, 4 if i != 2 else 3)
        loss, same = step({"x": x, "y": y})
        return loss, same is x

    return call, lambda: task


@compiles(programs=1)
def test_objects_that_hold_arrays(wrap):
    task = Task()

    class Batch:
        def __init__(self, x, y):
            self.x, self.y = x, y

    @wrap
    def step(data):
        return task.update(task.loss(torch.from_numpy(data.x).float(), torch.from_numpy(data.y)))

    return lambda i: step(Batch(*arrays(i))), lambda: task


@compiles(programs=1)
def test_an_array_is_written_through_its_tensor(wrap):
    @wrap
    def double(x):
        tensor = torch.from_numpy(x)
        tensor.mul_(2)
        return tensor.sum()

    def call(i):
        x = arrays(i)[0]
        return double(x), x

    return call, list


@compiles(programs=1)
def test_a_gradient_with_respect_to_an_array(wrap):
    task = Task()

    @wrap
    def force(x):
        points = torch.from_numpy(x).float().requires_grad_()
        energy = task.model(points).square().sum()
        (grad,) = torch.autograd.grad(energy, points)
        return energy.item(), -grad.numpy()

    return lambda i: force(arrays(i)[0]), lambda: task


@compiles(programs=1)
def test_a_statement_of_the_host_reads_an_array(wrap):
    task, means = Task(), []

    @wrap
    def step(x, y):
        loss = task.update(task.loss(torch.from_numpy(x).float(), torch.from_numpy(y)))
        means.append(x.mean())
        return loss

    return lambda i: step(*arrays(i)), lambda: (task, means)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_scalars_of_numpy(kind):
    def build(wrap):
        task = Task()

        @wrap
        def step(x, y, weight):
            loss = task.loss(x, y)
            return task.update(weight * loss.exp() + loss * weight + loss * (1 - weight / 3))

        return lambda i: step(*batch(i), kind(i * 1.7)), lambda: task

    compiles(programs=1)(build)()


@stays_eager(match="computes with the elements of an array")
def test_numpy_computes_with_an_array(wrap):
    task = Task()

    @wrap
    def step(x, y):
        x = torch.from_numpy((x - x.mean(0)) / x.std(0)).float()
        return task.update(task.loss(x, torch.from_numpy(y)))

    return lambda i: step(*arrays(i)), lambda: task


@stays_eager(match="computes with the elements of an array")
def test_an_error_of_numpy_is_caught(wrap):
    task = Task()

    @wrap
    def step(x, y):
        try:
            scale = x.mean()
        except Exception:  # noqa: BLE001 - as users write it
            scale = 2.0
        return task.update(task.loss(torch.from_numpy(x).float() * scale, torch.from_numpy(y)))

    return lambda i: step(*arrays(i)), lambda: task


@stays_eager(match="passes an array to other code than torch.from_numpy")
def test_another_constructor_takes_an_array(wrap):
    task = Task()

    @wrap
    def step(x, y):
        return task.update(task.loss(torch.Tensor(x), torch.from_numpy(y)))

    return lambda i: step(*arrays(i)), lambda: task


@stays_eager(match="an argument shares its memory with another one or with state")
def test_an_array_shares_memory_with_a_parameter(wrap):
    task = Task()

    @wrap
    def halve(x):
        task.model.weight.data.mul_(0.5)
        return torch.from_numpy(x).sum()

    return lambda i: halve(task.model.weight.detach().numpy()), lambda: task


WRONG = {
    "text": lambda: np.array(["a", "b"]),
    "objects": lambda: np.array([1, None]),
    "reversed": lambda: np.arange(3.0)[::-1],
    "bytes in another order": lambda: np.arange(3.0).astype(">f8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_torch_does_not_take_fail_as_in_plain_pytorch(name):
    def build(wrap):
        @wrap
        def double(x):
            return torch.from_numpy(x) * 2

        return lambda i: double(np.arange(3.0) if i < 3 else WRONG[name]()), list

    compiles(programs=1)(build)()


def write_one_and_read_another(a, b):
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    x.add_(1)
    return y * 2


@stays_eager(match="shares its memory")
def test_a_written_array_that_overlaps_another_one(wrap):
    step = wrap(write_one_and_read_another)
    array = np.arange(8.0)
    return lambda i: step(array[:5], array[3:]), lambda: array


@stays_eager(match="shares its memory", programs=1)
def test_a_written_array_whose_copy_is_an_input(wrap):
    step = wrap(write_one_and_read_another)
    array = np.arange(8.0)
    return lambda i: step(array[:4], array[::2] if i > 2 else np.ones(8)[::2]), lambda: array


@compiles(programs=1)
def test_arrays_that_overlap_and_are_only_read(wrap):
    task, data = Task(), np.arange(50.0, dtype=np.float32).reshape(10, 5)

    @wrap
    def step(a, b):
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        return task.update((task.model(x) - y[:, :3]).square().mean() / 1e6)

    return lambda i: step(data[i : i + 4], data[i + 1 : i + 5]), lambda: task
