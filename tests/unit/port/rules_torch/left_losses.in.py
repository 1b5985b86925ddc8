"""Losses that are not seen."""

import poptorch
from torch import nn
from elsewhere import Outside, options_of


class Two(nn.Module):
    def forward(self, x, y):
        return x, (x - y).square().mean()


class Several(nn.Module):
    def forward(self, x, y):
        return nn.functional.mse_loss(x, y), nn.functional.l1_loss(x, y)


class One(nn.Module):
    def forward(self, x, y):
        return nn.functional.mse_loss(x, y)


first = poptorch.trainingModel(Two())  # ABP1109 manual
second = poptorch.trainingModel(Several())  # ABP1109 manual
outside = Outside()
third = poptorch.trainingModel(outside)  # ABP1109 manual
opts = options_of("file")
fourth = poptorch.trainingModel(One(), opts)  # ABP1109 manual
