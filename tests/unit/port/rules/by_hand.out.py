"""Updates that are written out, with a limit of gradients and a rate that falls."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = criterion(self.model(x), y)
        return loss


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, second):
        super().__init__()
        self.second = second

    def forward(self, x, y):
        loss = criterion(self.second(x), y)
        return loss


torch.manual_seed(0)
loader = poptorch.DataLoader(
    opts, TensorDataset(torch.randn(160, 4), torch.randn(160, 3)), batch_size=8
)
model = nn.Linear(4, 3)
criterion = nn.MSELoss()


def train():
    for x, y in loader:
        loss = training_model(x, y)
        print(loss.item())


lr = 0.5
optimizer = poptorch.optim.SGD(model.parameters(), lr=lr, max_grad_norm=0.25)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(2):
    train()
    lr /= 4.0
    optimizer.param_groups[0]["lr"] = lr
    training_model.setOptimizer(optimizer)

second = nn.Linear(4, 3)
rate = 0.1
optimizer_2 = poptorch.optim.SGD(second.parameters(), lr=rate)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(second), options=opts, optimizer=optimizer_2
)
for x, y in loader:
    loss = training_model_2(x, y)
    print(loss.item())
