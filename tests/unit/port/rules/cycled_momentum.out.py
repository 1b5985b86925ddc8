"""Schedulers that change a momentum beside the rate."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        loss = nn.functional.mse_loss(self.model(x), torch.ones(8, 3))
        return loss


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def forward(self, x):
        loss = nn.functional.mse_loss(self.other(x), torch.ones(8, 3))
        return loss


class ModelWithLoss3(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, third):
        super().__init__()
        self.third = third

    def forward(self, x):
        loss = nn.functional.mse_loss(self.third(x), torch.ones(8, 3))
        return loss


torch.manual_seed(0)
model, other, third = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.999))
other_optimizer = poptorch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)
third_optimizer = poptorch.optim.Adam(third.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
other_scheduler = torch.optim.lr_scheduler.CyclicLR(other_optimizer, 0.01, 0.1, step_size_up=3)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(other), options=opts, optimizer=other_optimizer
)
third_scheduler = torch.optim.lr_scheduler.OneCycleLR(
    third_optimizer, 0.1, total_steps=12, cycle_momentum=False
)
training_model_3 = poptorch.trainingModel(
    ModelWithLoss3(third), options=opts, optimizer=third_optimizer
)
for step in range(10):
    x = torch.randn(8, 4)
    loss = training_model(x)
    scheduler.step()
    training_model.setOptimizer(optimizer)
    print(loss.item())
for step in range(10):
    x = torch.randn(8, 4)
    loss = training_model_2(x)
    other_scheduler.step()
    training_model_2.setOptimizer(other_optimizer)
    print(loss.item())
for step in range(10):
    x = torch.randn(8, 4)
    loss = training_model_3(x)
    third_scheduler.step()
    training_model_3.setOptimizer(third_optimizer)
    print(loss.item())
