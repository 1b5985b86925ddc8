"""A limit of the gradients of groups into which a loop has sorted all parameters of a model."""

import poptorch
import torch
from torch import nn


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3))

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x).square(), reduction="mean")


torch.manual_seed(0)
model = Fit()
some, others = [], []
for parameter in model.parameters():
    if parameter.ndim > 1:
        some.append(parameter)
    else:
        others.append(parameter)
groups = [{"params": some, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = poptorch.optim.AdamW(groups, lr=0.05, max_grad_norm=0.1)
training = poptorch.trainingModel(model, optimizer=optimizer)
for step in range(8):
    print(training(torch.randn(8, 4)).item())
print(*(each.norm().item() for each in training.model.parameters()))
