"""Options that change what is computed, and options that are not followed."""

import sys

import poptorch
from torch import nn


class Fit(nn.Module):
    def forward(self, x, y):
        return nn.functional.mse_loss(x, y)


opts = poptorch.Options()
opts.anchorTensor("gradient", "Gradient___weight")  # ABP1008 blocked
opts.enableSyntheticData(True)  # ABP1008 blocked
if len(sys.argv) > 1:
    opts.deviceIterations(4)  # ABP1109 blocked
known = {"options": opts}  # ABP1009 blocked
training = poptorch.trainingModel(Fit(), opts)

summed = poptorch.Options().deviceIterations(4)
summed.outputMode(poptorch.OutputMode.Sum)
model = Fit()
adding = poptorch.trainingModel(model, summed)
adding(1, 2)  # ABP1109 blocked
