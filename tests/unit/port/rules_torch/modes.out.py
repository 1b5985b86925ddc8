"""Programs keep their mode; modules do not."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, x, y=None):
        out = self.layers(x)
        return out if y is None else nn.functional.mse_loss(out, y)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training_model = model
inference_model = model
x, y = torch.randn(8, 4), torch.randn(8, 3)
for epoch in range(3):
    training_model.train()
    for step in range(3):
        optimizer.zero_grad()
        loss = training_model(x, y)
        loss.backward()
        optimizer.step()
        print(loss.item())
    if not epoch:
        model.eval()
    inference_model.eval()
    with torch.no_grad():
        scores = inference_model(x)
    print(scores.sum().item())
