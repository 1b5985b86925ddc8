"""What wrappers are told, and what they are asked of their programs."""

import poptorch
import torch
from torch import nn


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


torch.manual_seed(0)
x, y = torch.randn(8, 4), torch.randn(8, 3)
fit = Fit()
optimizer = poptorch.optim.SGD(fit.parameters(), lr=0.5, momentum=0.9)
training = poptorch.trainingModel(fit, optimizer=optimizer)
training.compile(x, y)
for step in range(6):
    loss = training(x, y)
    print(loss.item())
    if step == 1:
        optimizer.param_groups[0]["lr"] = 0.05
        training.setOptimizer(optimizer)
    if step == 3:
        training.detachFromDevice()
        with torch.no_grad():
            fit.layer.bias.zero_()
        training.copyWeightsToDevice()
        training.attachToDevice()
    if training.isCompiled():
        training.copyWeightsToHost()
        print(training.model.layer.bias.sum().item())
    else:
        print("nothing is compiled")
print(training.model is fit)
training.destroy()
