"""What is differentiated has no name of its own, or is computed elsewhere."""

import poptorch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        out = self.model(x)
        loss = self.criterion(out, y)
        return out, poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, parts):
        super().__init__()
        self.model = model
        self.parts = parts

    def forward(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        total_loss = (loss / self.parts)
        return loss, poptorch.identity_loss(total_loss, reduction="none")


class ModelWithLoss3(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = F.mse_loss(self.model(x), y, reduction="none")
        total_loss = loss.mean()
        return loss, poptorch.identity_loss(total_loss, reduction="none")


class ModelWithLoss4(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = loss_of(self.model, x, y)
        return poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss5(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
data = TensorDataset(torch.randn(80, 4), torch.randn(80, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)


def smoothed(out, y, weight=0.1):
    return F.smooth_l1_loss(out, y) + weight * out.square().mean()


def loss_of(model, x, y):
    return smoothed(model(x), y)


def by_expression(model, optimizer, criterion, training_model):
    for x, y in loader:
        out, loss = training_model(x, y)
        print(out[0, 0].item())


def by_share(model, optimizer, parts, training_model_2):
    for x, y in loader:
        loss, total_loss = training_model_2(x, y)
        print(loss.item())


def by_rows(model, optimizer):
    for x, y in loader:
        loss, total_loss = training_model_3(x, y)
        print(loss.sum().item())


def by_function(model, optimizer):
    for x, y in loader:
        loss = training_model_4(x, y)
        print(loss.item())


def one_step(model, optimizer, x, y):
    model.train()
    loss = training_model_5(x, y)
    return loss.item()


def main():
    first = nn.Linear(4, 3)
    first_optimizer = poptorch.optim.SGD(first.parameters(), lr=0.1)
    criterion = nn.L1Loss()
    training_model = poptorch.trainingModel(
        ModelWithLoss(first, criterion), options=opts, optimizer=first_optimizer
    )
    by_expression(first, first_optimizer, criterion, training_model=training_model)
    second = nn.Linear(4, 3)
    second_optimizer = poptorch.optim.Adam(second.parameters())
    parts = 4
    training_model_2 = poptorch.trainingModel(
        ModelWithLoss2(second, parts), options=opts, optimizer=second_optimizer
    )
    by_share(second, second_optimizer, parts, training_model_2=training_model_2)


main()
third = nn.Linear(4, 3)
third_optimizer = poptorch.optim.AdamW(third.parameters(), lr=0.01)
training_model_3 = poptorch.trainingModel(
    ModelWithLoss3(third), options=opts, optimizer=third_optimizer
)
by_rows(third, third_optimizer)
fourth = nn.Linear(4, 3)
fourth_optimizer = poptorch.optim.RMSprop(fourth.parameters())
training_model_4 = poptorch.trainingModel(
    ModelWithLoss4(fourth), options=opts, optimizer=fourth_optimizer
)
by_function(fourth, fourth_optimizer)
fifth = nn.Linear(4, 3)
last_optimizer = poptorch.optim.SGD(fifth.parameters(), lr=0.1)
training_model_5 = poptorch.trainingModel(
    ModelWithLoss5(fifth), options=opts, optimizer=last_optimizer
)
for epoch in range(2):
    for x, y in loader:
        print(one_step(fifth, last_optimizer, x, y))
