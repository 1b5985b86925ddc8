"""Ways to say that an update is made after four batches, of an epoch that has sixteen."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

training_opts = poptorch.Options()
training_opts.Training.gradientAccumulation(4)
training_opts.outputMode(poptorch.OutputMode.All)
training_opts_2 = poptorch.Options()
training_opts_2.Training.gradientAccumulation(4)
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

    def __init__(self, second):
        super().__init__()
        self.second = second

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.second(x), y)
        return loss


torch.manual_seed(0)
PARTS, ROWS = 4, 8
data = TensorDataset(torch.randn(16 * ROWS, 4), torch.randint(0, 3, (16 * ROWS,)))
model = nn.Linear(4, 3)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=training_opts, optimizer=optimizer
)
loader = poptorch.DataLoader(training_opts, data, batch_size=ROWS)


def train(model, loader, optimizer, parts=2):
    total = 0.0
    for i, (x, y) in enumerate(loader, start=1):
        losses = training_model(x, y)
        for i, loss in enumerate(losses, (i - 1) * parts + 1):
            loss = loss / parts
            total += loss.item() * parts
    print(i, loss.item())
    return total / (len(loader) * 4)


for epoch in range(2):
    print(train(model, loader, optimizer, parts=PARTS))

second = nn.Linear(4, 3)
second_optimizer = poptorch.optim.SGD(second.parameters(), lr=0.5)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(second), options=training_opts_2, optimizer=second_optimizer
)
second_loader = poptorch.DataLoader(training_opts_2, data, batch_size=ROWS, drop_last=True)
print(len(second_loader) * 4)
for epoch in range(2):
    for i, (x, y) in enumerate(second_loader):
        losses = training_model_2(x, y)
        for loss in losses:
            pass
    print(loss.item())
