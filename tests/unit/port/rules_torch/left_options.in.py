"""Options that change what is computed, and options that are not followed."""

import sys

import poptorch
from torch import nn


class Fit(nn.Module):
    def forward(self, x, y):
        return nn.functional.mse_loss(x, y)


opts = poptorch.Options()  # ABP1909 manual
opts.anchorTensor("gradient", "Gradient___weight")  # ABP1008 manual
opts.enableSyntheticData(True)  # ABP1008 manual
if len(sys.argv) > 1:
    opts.deviceIterations(4)  # ABP1909 manual
known = {"options": opts}
training = poptorch.trainingModel(Fit(), opts)  # ABP1109 manual

summed = poptorch.Options().deviceIterations(4)  # ABP1909 manual
summed.outputMode(poptorch.OutputMode.Sum)  # ABP1909 manual
model = Fit()
adding = poptorch.trainingModel(model, summed)  # ABP1109 manual
adding(1, 2)
