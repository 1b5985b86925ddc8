"""How many batches are added up comes from the environment."""

import os

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        return loss


PARTS = int(os.environ.get("PARTS", "2"))
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
training_opts = poptorch.Options()
training_opts.Training.gradientAccumulation(PARTS)
training_opts.outputMode(poptorch.OutputMode.All)
training_opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
loader = poptorch.DataLoader(training_opts, data, batch_size=8)
model = nn.Linear(4, 3)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=training_opts, optimizer=optimizer
)
for i, (x, y) in enumerate(loader):
    losses = training_model(x, y)
    for loss in losses.reshape(-1):
        print(loss.item())
