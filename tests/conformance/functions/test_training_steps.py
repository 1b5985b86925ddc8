"""Training steps as people write them, compiled: the same bits as plain PyTorch's."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from helpers.compiled_functions import Task, batch, compiles, in_two


def deep(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), *between, nn.Tanh(), nn.Linear(8, 3))


@compiles(programs=1)
def test_clipped_gradients_and_a_list_of_losses(wrap):
    task, losses = Task(torch.optim.AdamW, deep()), []

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(task.model.parameters(), 0.5)
        task.optimizer.step()
        losses.append(loss.item())
        return loss.detach(), norm

    return lambda i: step(*batch(i)), lambda: (task, losses)


@compiles(programs=2)
def test_gradients_accumulate_over_batches_of_a_list(wrap):
    task = Task()

    @wrap
    def step(batches):
        task.optimizer.zero_grad()
        total = 0.0
        for x, y in batches:
            loss = task.loss(x, y) / len(batches)
            loss.backward()
            total += loss.item()
        task.optimizer.step()
        return total

    return lambda i: step([batch(9 * i + k) for k in range(2 + i % 2)]), lambda: task


@compiles(programs=3)
def test_gradients_accumulate_over_calls_and_another_function_updates(wrap):
    task = Task()
    params = [*task.model.parameters()]

    accumulate, update = in_two(task, wrap)

    def call(i):
        found = accumulate(*batch(i)), accumulate(*batch(i + 50))
        found += ([each.grad.clone() for each in params],)
        if i % 2:
            update()
        return found

    return call, lambda: (task, [each.grad for each in params])


@compiles(programs=2)
def test_gradients_that_are_emptied_outside_only_now_and_then(wrap):
    task = Task()

    @wrap
    def step(x, y):
        loss = task.loss(x, y)
        loss.backward()
        task.optimizer.step()
        return loss

    def call(i):
        if i in (1, 4):
            task.optimizer.zero_grad()
        return step(*batch(i))

    return call, lambda: task


@compiles(programs=1)
def test_an_update_comes_before_the_gradient_of_the_next(wrap):
    task = Task(torch.optim.Adam)

    @wrap
    def step(x, y):
        task.optimizer.step()
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        loss.backward()
        return loss

    grads = [*task.model.parameters()]
    return lambda i: step(*batch(i)), lambda: (task, [each.grad for each in grads])


@compiles(programs=1, keep_gradients=True)
def test_gradients_can_be_kept(wrap):
    task = Task()

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    params = [*task.model.parameters()]
    return lambda i: step(*batch(i)), lambda: (task, [each.grad for each in params])


@compiles(programs=1)
def test_the_random_numbers_are_those_of_the_stream(wrap):
    task = Task(model=deep(nn.Dropout(0.5)))

    @wrap
    def step(x, y):
        order = torch.randperm(4)
        x = x[order] + torch.randn_like(x) * torch.bernoulli(torch.full((4, 5), 0.5))
        return task.update(task.loss(x + torch.rand(4, 5), torch.randint(0, 3, (4,))))

    return lambda i: step(*batch(i)), lambda: task


@compiles(programs=1)
def test_a_scheduler_steps_last(wrap):
    task = Task(torch.optim.AdamW)
    scheduler = lr_scheduler.CosineAnnealingLR(task.optimizer, 10)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        scheduler.step()
        return loss.item(), scheduler.get_last_lr()[0], task.optimizer.param_groups[0]["lr"]

    return lambda i: step(*batch(i)), lambda: (task, scheduler)


@compiles(programs=1)
def test_a_schedule_of_momentum_needs_no_other_program(wrap):
    task = Task(torch.optim.AdamW)
    scheduler = lr_scheduler.OneCycleLR(task.optimizer, 1e-2, total_steps=20)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        scheduler.step()
        return loss

    return lambda i: step(*batch(i)), lambda: (task, scheduler)


@compiles(programs=1)
def test_a_scheduler_steps_by_the_loss(wrap):
    task = Task(torch.optim.AdamW)
    scheduler = lr_scheduler.ReduceLROnPlateau(task.optimizer, patience=0, factor=0.5)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        scheduler.step(loss.detach())
        return loss.item()

    return lambda i: step(*batch(i)), lambda: (task, scheduler.state_dict())


@compiles(programs=1)
def test_an_average_of_weights_assigned_to_data(wrap):
    task = Task()
    average = nn.Linear(5, 3)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        for mean, param in zip(average.parameters(), task.model.parameters(), strict=True):
            mean.data = mean.data * 0.9 + param.data * 0.1
        return loss

    return lambda i: step(*batch(i)), lambda: (task, average)


AVERAGES = {
    "SWA": {},
    "SWA of buffers": {"use_buffers": True},
    "EMA": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "EMA of buffers": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9), "use_buffers": True},
    "own": {"avg_fn": lambda mean, value, count: 0.9 * mean + 0.1 * value},
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_averaged_model(name):
    def build(wrap):
        task = Task(model=nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)))
        average = swa_utils.AveragedModel(task.model, **AVERAGES[name])

        @wrap
        def step(x, y):
            loss = task.update(task.loss(x, y))
            average.update_parameters(task.model)
            return loss

        return lambda i: step(*batch(i)), lambda: (task, average)

    compiles(programs=1, calls=6)(build)()


@compiles(programs=2, calls=8)
def test_every_third_step_by_a_counter_that_is_a_tensor(wrap):
    task, count = Task(), torch.zeros((), dtype=torch.long)

    @wrap
    def step(x, y):
        count.add_(1)
        loss = task.update(task.loss(x, y))
        if count % 3 == 0:
            with torch.no_grad():
                task.model.weight.mul_(0.9)
        return loss

    return lambda i: step(*batch(i)), lambda: (task, count)


@compiles(programs=1, calls=4)
def test_two_networks_train_against_each_other(wrap):
    makes, judges = nn.Linear(4, 5), nn.Linear(5, 1)
    adam = [torch.optim.Adam(each.parameters()) for each in (makes, judges)]
    ones, zeros = torch.ones(4, 1), torch.zeros(4, 1)
    loss_of = F.binary_cross_entropy_with_logits

    @wrap
    def step(real):
        made = makes(torch.randn(4, 4))
        adam[1].zero_grad()
        judging = loss_of(judges(real), ones) + loss_of(judges(made.detach()), zeros)
        judging.backward()
        adam[1].step()
        adam[0].zero_grad()
        making = loss_of(judges(made), ones)
        making.backward()
        adam[0].step()
        return {"judging": judging.item(), "making": making.item()}

    return lambda i: step(batch(i)[0]), lambda: (makes, judges, adam)


@compiles(programs=1)
def test_a_penalty_on_a_gradient_is_trained(wrap):
    task = Task(model=deep())

    @wrap
    def step(x, y):
        mixed = x.lerp(x.flip(0), torch.rand(4, 1)).requires_grad_()
        (gradient,) = torch.autograd.grad(task.model(mixed).sum(), mixed, create_graph=True)
        penalty = (gradient.norm(2, dim=1) - 1).square().mean()
        return task.update(task.loss(x, y) + penalty)

    return lambda i: step(*batch(i)), lambda: task


@compiles(programs=1)
def test_an_update_of_ones_own(wrap):
    model, rate = nn.Linear(5, 3), 0.1

    @wrap
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= rate * param.grad
                param.grad = None
        return loss

    return lambda i: step(*batch(i)), lambda: (model, [p.grad for p in model.parameters()])


@compiles(programs=1)
def test_weights_move_uphill_and_back_before_the_update(wrap):
    task = Task()
    params = [*task.model.parameters()]

    @wrap
    def step(x, y):
        loss = task.loss(x, y)
        loss.backward()
        uphill = [param.grad * 0.05 for param in params]
        torch._foreach_add_([param.data for param in params], uphill)
        task.optimizer.zero_grad()
        task.loss(x, y).backward()
        torch._foreach_sub_([param.data for param in params], uphill)
        task.optimizer.step()
        task.optimizer.zero_grad()
        return loss

    return lambda i: step(*batch(i)), lambda: task


@compiles(programs=1)
def test_inner_updates_are_differentiated(wrap):
    task = Task(model=deep())

    @wrap
    def step(x, y):
        params = dict(task.model.named_parameters())
        for _ in range(2):
            loss = F.cross_entropy(torch.func.functional_call(task.model, params, (x,)), y)
            grads = torch.autograd.grad(loss, [*params.values()], create_graph=True)
            inner = zip(params.items(), grads, strict=True)
            params = {name: param - 0.1 * grad for (name, param), grad in inner}
        out = torch.func.functional_call(task.model, params, (x,))
        return task.update(F.cross_entropy(out, y))

    return lambda i: step(*batch(i)), lambda: task


@compiles(programs=2)
def test_autocast_around_calls_that_keeps_no_casts(wrap):
    task = Task()

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    def call(i):
        dtype = torch.bfloat16 if i < 3 else torch.float16
        with torch.autocast("cpu", dtype, cache_enabled=False):
            return step(*batch(i)), step(*batch(i + 9))

    return call, lambda: task


@compiles(programs=1)
def test_a_table_of_words_is_shared_with_the_output_layer(wrap):
    table = nn.Embedding(7, 5)
    output = nn.Linear(5, 7, bias=False)
    output.weight = table.weight
    task = Task(model=nn.Sequential(table, output))

    @wrap
    def step(words):
        return task.update(task.loss(words[:-1], words[1:]))

    seeds = [torch.Generator().manual_seed(i) for i in range(5)]
    return lambda i: step(torch.randint(0, 7, (6,), generator=seeds[i])), lambda: task


@compiles(programs=1)
def test_a_state_goes_from_call_to_call_as_an_argument(wrap):
    layer, output = nn.GRU(5, 6, batch_first=True), nn.Linear(6, 3)
    task, box = Task(model=nn.ModuleList([layer, output])), [torch.zeros(1, 4, 6)]

    @wrap
    def step(x, y, state):
        out, state = layer(x[:, None], state)
        return task.update(F.cross_entropy(output(out[:, -1]), y)), state.detach()

    def call(i):
        loss, box[0] = step(*batch(i), box[0])
        return loss

    return call, lambda: (task, box)


@compiles(programs=1)
def test_a_queue_of_keys_is_written_in_place(wrap):
    task = Task()
    queue, labels = torch.zeros(8, 3), torch.zeros(4, dtype=torch.long)

    @wrap
    def step(x):
        keys = task.model(x)
        loss = F.cross_entropy(keys @ queue.clone().t() + keys.sum(), labels)
        task.update(loss)
        queue.copy_(torch.cat([keys.detach(), queue[:-4]]))
        return loss

    return lambda i: step(batch(i)[0]), lambda: (task, queue)
