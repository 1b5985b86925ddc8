"""Gradients of several batches are added up for one update."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

training_opts = poptorch.Options()
training_opts.Training.gradientAccumulation(4)
training_opts.outputMode(poptorch.OutputMode.All)


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out = self.model(x)
        loss = criterion(out, y)
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
PARTS = 4
data = TensorDataset(torch.randn(320, 4), torch.randint(0, 3, (320,)))
loader = poptorch.DataLoader(training_opts, data, batch_size=4)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=training_opts, optimizer=optimizer
)


def train():
    total = 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        losses = training_model(x, y)
        for i, loss in enumerate(losses, i * PARTS):
            loss = loss / PARTS
            total += loss.item()
            if i % 10 == 0:
                print(i, loss.item(), total)


train()

second = nn.Linear(4, 3)
second_optimizer = poptorch.optim.Adam(second.parameters(), lr=0.01)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(second), options=training_opts, optimizer=second_optimizer
)
second_loader = poptorch.DataLoader(training_opts, data, batch_size=4)
second_optimizer.zero_grad()
for step, (x, y) in enumerate(second_loader):
    losses = training_model_2(x, y)
    for loss in losses:
        print(loss.item())
