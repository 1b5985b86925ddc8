"""What wrappers are told, and what they are asked of their programs."""

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
optimizer = torch.optim.SGD(fit.parameters(), lr=0.5, momentum=0.9)
training = fit
for step in range(6):
    optimizer.zero_grad()
    loss = training(x, y)
    loss.backward()
    optimizer.step()
    print(loss.item())
    if step == 1:
        optimizer.param_groups[0]["lr"] = 0.05
    if step == 3:
        with torch.no_grad():
            fit.layer.bias.zero_()
    if True:
        print(training.layer.bias.sum().item())
    else:
        print("nothing is compiled")
print(training is fit)
