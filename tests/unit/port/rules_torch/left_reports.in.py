"""What a wrapper says of its program, and several batches of an evaluation."""

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x), training=self.training)


options = poptorch.Options().deviceIterations(4)  # ABP1909 manual
options.randomSeed(3)  # ABP1909 manual
options.Precision.enableStochasticRounding(False)  # ABP1008 manual
model = Net()
inference = poptorch.inferenceModel(model, options)  # ABP1209 manual
x = torch.randn(32, 4)
print(inference(x).shape)
print(inference.target, inference.cycleCount())  # ABP1114 manual
print(inference.model is model)
if inference(x).sum() > 0:
    print("positive")
