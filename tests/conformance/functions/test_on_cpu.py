"""Compiled functions on the cpu target: closely the numbers of plain PyTorch."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from helpers.compiled_functions import Task, batch, compiles

pytestmark = pytest.mark.compiler


@compiles(programs=1, target="cpu")
def test_a_step_with_clipped_gradients_and_a_scheduler(wrap):
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    task, losses = Task(torch.optim.AdamW, model), []
    scheduler = lr_scheduler.CosineAnnealingLR(task.optimizer, 10)

    @wrap
    def step(x, y):
        task.optimizer.zero_grad()
        loss = task.loss(x, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        task.optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
        return norm

    return lambda i: step(*batch(i)), lambda: (task, scheduler, losses)


@compiles(programs=2, target="cpu")
def test_training_and_evaluation(wrap):
    task, layer = Task(), nn.LSTM(3, 3)

    step = wrap(lambda x, y: task.update(task.loss(x, y)))

    @wrap
    @torch.inference_mode()
    def evaluate(x, y):
        out = layer(task.model(x)[None])[0][0]
        return out, (out.argmax(1) == y).sum().item()

    return lambda i: (step(*batch(i)), evaluate(*batch(i + 9))), lambda: task


@compiles(programs=1, target="cpu")
def test_an_average_of_weights_and_a_queue(wrap):
    task, average, queue = Task(), nn.Linear(5, 3), torch.zeros(8, 3)

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y) + (task.model(x) @ queue.clone().t()).mean())
        with torch.no_grad():
            for mean, param in zip(average.parameters(), task.model.parameters(), strict=True):
                mean.lerp_(param, 0.1)
            queue.copy_(torch.cat([average(x), queue[:-4]]))
        return loss

    return lambda i: step(*batch(i)), lambda: (task, average, queue)


@compiles(programs=2, target="cpu")
def test_arguments_in_other_layouts_are_written(wrap):
    @wrap
    def run(x):
        x.mul_(2)
        return x.sum(0)

    def call(i):
        x = batch(i)[0]
        x = x[:3] if i % 2 else x
        return run(x), x

    return call, list
