"""Gradients of several batches and instances, added up, or averaged with their norm limited."""

import popdist
import popdist.poptorch
import poptorch
import torch
from torch.utils.data import TensorDataset

BATCH, REPLICAS = 4, 2


class Fit(torch.nn.Linear):
    def forward(self, x, y):
        scores = super().forward(x)
        return scores, poptorch.identity_loss((scores - y).square(), reduction="mean")


def place():
    if popdist.isPopdistEnvSet():
        popdist.init()  # ABP1601 modified
        return popdist.poptorch.Options(), popdist.getReplicaIndexOffset()
    return poptorch.Options().replicationFactor(REPLICAS), 0


options, offset = place()
options.randomSeed(7)
options.deviceIterations(2)
options.Training.gradientAccumulation(2)
options.outputMode(poptorch.OutputMode.All)
data = TensorDataset(torch.randn(144, 4), torch.randn(144, 3))
model = Fit(4, 3)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, max_grad_norm=0.5)
training = poptorch.trainingModel(model, options, optimizer)
for x, y in poptorch.DataLoader(options, data, BATCH):  # ABP1604 modified
    scores, losses = training(x, y)  # ABP1103 modified
    print(offset, scores.shape, losses.tolist())

sums = popdist.poptorch.Options().randomSeed(3)
sums.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
second = Fit(4, 3)
second_optimizer = poptorch.optim.SGD(second.parameters(), lr=0.05)
trainer = poptorch.trainingModel(second, sums, second_optimizer)
for x, y in poptorch.DataLoader(sums, data, batch_size=BATCH, shuffle=False):
    _, loss = trainer(x, y)  # ABP1103 modified
    print(loss.item())
