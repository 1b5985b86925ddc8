"""Calls that take several batches: iterations, accumulation and replicas."""

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset

ACCUMULATION = 4


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        scores = self.layer(x)
        return scores, poptorch.identity_loss((scores - y).square(), reduction="mean")


torch.manual_seed(0)
data = TensorDataset(torch.randn(160, 4), torch.randn(160, 3))

opts = poptorch.Options().deviceIterations(2)
opts.Training.gradientAccumulation(ACCUMULATION)
opts.outputMode(poptorch.OutputMode.All)
model = Fit()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
for x, y in poptorch.DataLoader(opts, data, 4):
    _, losses = training(x, y)
    for loss in losses:
        print(loss.item())

accumulated = poptorch.Options()
accumulated.Training.gradientAccumulation(2)
accumulated.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
second = Fit()
second_optimizer = poptorch.optim.SGD(second.parameters(), lr=0.1, max_grad_norm=0.2)
trainer = poptorch.trainingModel(second, accumulated, second_optimizer)
loader = poptorch.DataLoader(options=accumulated, dataset=data, batch_size=8)
for x, y in loader:
    scores, loss = trainer(x, y=y)
    print(scores.shape, loss.tolist())
