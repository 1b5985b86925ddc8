"""Enabled gradient scalers, and calls inside of blocks of autocast."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from helpers.compiled_functions import Task, batch, compiles, in_two, stays_eager

INFINITE = (2, 3, 6)  # calls with gradients that are not finite


def scaled(wrap, kind=torch.optim.AdamW, *, unscales=False, logs=False, **options):
    """A case of a step with a scaler, some of whose gradients are infinite."""
    task = Task(kind, **({"lr": 0.1} if kind is torch.optim.SGD else {}))
    scaler, scales = torch.amp.GradScaler("cpu", **{"growth_interval": 2, **options}), []

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(task.optimizer)
            nn.utils.clip_grad_norm_(task.model.parameters(), 0.5)
        scaler.step(task.optimizer)
        scaler.update()
        if logs:
            scales.append(scaler.get_scale())
        return loss

    def call(i):
        x, y = batch(i)
        return step(x * (float("inf") if i in INFINITE else 1), y)

    def state():
        return task, scaler.state_dict(), scaler.get_scale(), scales

    return call, state


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_skips_updates(kind, unscales):
    compiles(programs=1, calls=10)(lambda wrap: scaled(wrap, kind, unscales=unscales))()


@compiles(programs=1, calls=10)
def test_the_scale_is_logged(wrap):
    return scaled(wrap, logs=True)


@compiles(programs=1, calls=6)
def test_a_scale_that_grows_beyond_float32(wrap):
    return scaled(wrap, init_scale=2.0**127, growth_interval=1)


@compiles(programs=1, calls=6)
def test_a_disabled_scaler(wrap):
    return scaled(wrap, torch.optim.SGD, enabled=False)


@compiles(programs=2, calls=6)
def test_another_growth_interval_between_calls(wrap):
    task, scaler = Task(), torch.amp.GradScaler("cpu", growth_interval=2)

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        scaler.scale(task.loss(x, y)).backward()
        scaler.step(task.optimizer)
        scaler.update()

    def call(i):
        scaler.set_growth_interval(2 if i < 3 else 1)
        return step(*batch(i))

    return call, lambda: (task, scaler.state_dict())


@compiles(programs=2, calls=8)
def test_a_scaler_with_accumulated_gradients(wrap):
    task, scaler = Task(torch.optim.Adam), torch.amp.GradScaler("cpu", growth_interval=2)

    @wrap
    def step(x, y, last):
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.loss(x, y) / 2
        scaler.scale(loss).backward()
        if last:
            scaler.step(task.optimizer)
            scaler.update()
            task.optimizer.zero_grad()
        return loss

    return lambda i: step(*batch(i), i % 2 == 1), lambda: (task, scaler.state_dict())


@compiles(programs=1)
def test_two_optimizers_of_one_scaler(wrap):
    first, second = Task(torch.optim.Adam), Task()
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)

    @wrap
    def step(x, y):
        for task in (first, second):
            task.optimizer.zero_grad()
        scaler.scale(first.loss(x, y) + second.loss(x, y)).backward()
        for task in (first, second):
            scaler.step(task.optimizer)
        scaler.update()

    return lambda i: step(*batch(i)), lambda: (first, second, scaler.state_dict())


@compiles(programs=2, calls=20)
def test_a_scaler_in_two_functions(wrap):
    task, scaler = Task(torch.optim.NAdam), torch.amp.GradScaler("cpu", growth_interval=2)

    @wrap
    def backward(x, y):
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        scaler.scale(loss).backward()
        return loss

    @wrap
    def update():
        scaler.unscale_(task.optimizer)
        norm = nn.utils.clip_grad_norm_(task.model.parameters(), 0.5)
        scaler.step(task.optimizer)
        scaler.update()
        return norm

    def call(i):
        x, y = batch(i)
        return backward(x * (float("inf") if i in INFINITE else 1), y), update()

    return call, lambda: (task, scaler.state_dict())


@stays_eager(match=r"between unscale_\(\) or step\(\) of a GradScaler and its update\(\)")
def test_a_scaler_is_updated_outside(wrap):
    task, scaler = Task(), torch.amp.GradScaler("cpu")

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        scaler.scale(task.loss(x, y)).backward()
        scaler.step(task.optimizer)

    def call(i):
        step(*batch(i))
        scaler.update()

    return call, lambda: (task, scaler.state_dict())


@stays_eager(match="GradScaler steps a Own, which has no update rule")
def test_a_scaler_steps_an_optimizer_of_ones_own(wrap):
    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for param in group["params"]:
                    param.sub_(param.grad)

    task, scaler = Task(Own), torch.amp.GradScaler("cpu")

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        scaler.scale(task.loss(x, y)).backward()
        scaler.step(task.optimizer)
        scaler.update()

    return lambda i: step(*batch(i)), lambda: (task, scaler.state_dict())


# -- calls inside of autocast ------------------------------------------------------------


@compiles(programs=2)
def test_autocast_around_each_call(wrap):
    layers = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    task = Task(torch.optim.Adam, model=layers)

    @wrap
    def step(x, y):
        out = task.model(x) + task.model(x / 2)
        return task.update(F.cross_entropy(out, y))

    def call(i):
        with torch.autocast("cpu", torch.bfloat16, enabled=i != 3):
            loss = step(*batch(i))
            # Plain PyTorch goes on to use the casts of the weights before the update.
            return loss, task.model(batch(i)[0]).detach()

    return call, lambda: task


@compiles(programs=1)
def test_autocast_around_calls_with_weights_of_several_types(wrap):
    layers = nn.ModuleList([nn.Linear(5, 5).double(), nn.Linear(5, 3), nn.Linear(3, 3).bfloat16()])
    task = Task(model=layers)

    @wrap
    def step(x, y):
        out = layers[2](layers[1](layers[0](x.double()).float()))
        return task.update(F.cross_entropy(out.float(), y))

    def call(i):
        with torch.autocast("cpu", torch.bfloat16):
            return step(*batch(i)), layers[1](batch(i)[0]).detach()

    return call, lambda: task


@compiles(programs=1)
def test_validation_inside_of_one_block_of_autocast(wrap):
    task = Task()

    @wrap
    @torch.no_grad()
    def validate(x, y):
        return F.cross_entropy(task.model(x), y)

    def call(i):
        with torch.autocast("cpu", torch.bfloat16):
            losses = [validate(*batch(i + k)) for k in range(4)]
            with torch.no_grad():
                task.model.weight.mul_(0.9)
            return losses, validate(*batch(i))

    return call, lambda: task


class Block:
    """A block of autocast around all calls of a case."""

    def __init__(self, calls, **options):
        self._autocast, self._last = torch.autocast("cpu", torch.bfloat16, **options), calls - 1

    def call(self, i, function):
        if i == 0:
            self._autocast.__enter__()
        try:
            return function()
        finally:
            if i == self._last:
                self._autocast.__exit__(None, None, None)


@compiles(programs=1, calls=20)
def test_all_calls_inside_of_one_block_of_autocast(wrap):
    task, block = Task(), Block(20)

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    return lambda i: block.call(i, lambda: step(*batch(i))), lambda: task


@compiles(programs=2, calls=20)
def test_two_functions_inside_of_each_block_of_autocast(wrap):
    convolution = nn.Conv2d(1, 2, 3, padding=1).to(memory_format=torch.channels_last)
    layers = nn.Sequential(convolution, nn.Flatten(), nn.Linear(10, 3))
    task = Task(torch.optim.NAdam, model=layers)

    @wrap
    def first(x, y):
        return task.update(task.loss(x[:, None, None], y))

    @wrap
    def second(x, y):
        out = task.model(x[:, None, None])
        return task.update((out.float() - F.one_hot(y, 3)).square().mean())

    def call(i):
        with torch.autocast("cpu", torch.bfloat16):
            return first(*batch(i)), second(*batch(i)), first(*batch(i + 40))

    return call, lambda: task


@compiles(programs=3, calls=20)
def test_gradients_are_added_inside_of_each_block_of_autocast(wrap):
    task = Task()

    add, update = in_two(task, wrap)

    def call(i):
        with torch.autocast("cpu", torch.bfloat16):
            losses = [add(*batch(i)), add(*batch(i + 30))]
            update()
            return losses, add(*batch(i + 60)), update()

    return call, lambda: task


@compiles(programs=2, calls=20)
def test_validation_before_training_inside_of_each_block_of_autocast(wrap):
    task = Task()

    @wrap
    @torch.no_grad()
    def validate(x, y):
        return F.cross_entropy(task.model(x), y)

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    def call(i):
        with torch.autocast("cpu", torch.bfloat16):
            before = [validate(*batch(i))] if i % 3 else []
            return *before, step(*batch(i)), validate(*batch(i))

    return call, lambda: task


@compiles(programs=1, calls=20)
def test_validation_and_training_in_one_function_inside_of_autocast(wrap):
    task, block = Task(), Block(20)

    @wrap
    def step(x, y):
        with torch.no_grad():
            before = task.loss(x, y)
        return before, task.update(task.loss(x, y))

    return lambda i: block.call(i, lambda: step(*batch(i))), lambda: task


@compiles(programs=1, calls=20)
def test_code_that_converts_weights_itself_inside_of_autocast(wrap):
    task, block = Task(), Block(20)
    scale = nn.Parameter(torch.ones(5, 5))
    task.optimizer.add_param_group({"params": [scale]})

    @wrap
    def step(x, y):
        x = x.bfloat16() * scale.to(torch.bfloat16).sum(0)
        return task.update(F.cross_entropy(task.model(x @ scale), y))

    return lambda i: block.call(i, lambda: step(*batch(i))), lambda: (task, scale)


@compiles(programs=1, calls=20)
def test_autocast_in_a_function_inside_of_a_block_without(wrap):
    task, block = Task(), Block(20, enabled=False)

    @wrap
    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.loss(x, y)
        return task.update(loss)

    return lambda i: block.call(i, lambda: step(*batch(i))), lambda: task


@stays_eager(match="changes a weight before torch.autocast casts it", calls=6)
def test_weights_that_change_before_they_are_cast(wrap):
    task = Task()

    @wrap
    def step(x, y):
        with torch.no_grad():
            task.model.weight.mul_(0.9)
        return task.update(task.loss(x, y))

    def call(i):
        with torch.autocast("cpu", torch.bfloat16):
            return step(*batch(i))

    return call, lambda: task


@compiles(programs=3, calls=8)
def test_a_new_scaler_between_calls(wrap):
    task, held = Task(), {"scaler": torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)}

    @wrap
    def step(x, y):
        scaler = held["scaler"]
        task.optimizer.zero_grad()
        scaler.scale(task.loss(x, y)).backward()
        scaler.step(task.optimizer)
        scaler.update()

    def call(i):
        if i == 3:
            held["scaler"] = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        return step(*batch(i))

    return call, lambda: (task, held["scaler"].state_dict())
