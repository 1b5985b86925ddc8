"""Gradients are added up over four batches, or those that are left at the end of an epoch."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

training_opts = poptorch.Options()
training_opts.Training.gradientAccumulation(4)
training_opts.outputMode(poptorch.OutputMode.All)
training_opts_2 = poptorch.Options()
training_opts_2.Training.gradientAccumulation(2)
training_opts_2.outputMode(poptorch.OutputMode.All)
training_opts_2.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        return loss


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.other(x), y)
        return loss


torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
loader, other_loader = poptorch.DataLoader(
    training_opts, data, batch_size=8
), poptorch.DataLoader(
    training_opts_2, data, batch_size=8
)
model, other = nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=training_opts, optimizer=optimizer
)
other_optimizer = poptorch.optim.SGD(other.parameters(), lr=0.5)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(other), options=training_opts_2, optimizer=other_optimizer
)
PARTS = 4
for epoch in range(2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        losses = training_model(x, y)
        for i, loss in enumerate(losses, i * PARTS):
            loss = loss / PARTS
            print(epoch, i, loss.item())
for i, (x, y) in enumerate(other_loader):
    losses = training_model_2(x, y)
    for i, loss in enumerate(losses, i * 2):
        print(i, loss.item())
