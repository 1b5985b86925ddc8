"""Operators and annotations inside of models."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)
        self.third = nn.Conv1d(3, 3, 1)

    def forward(self, x, y):
        # the first layer
        # is small
        x = torch.tanh(self.first(x))
        with torch.profiler.record_function("out"):
            x = self.third(self.second(x).unsqueeze(2)).squeeze(2)
        if False:
            pass
        x = torch.matmul(x, torch.eye(3))
        loss = (x - y).square().mean(1)
        loss = loss.sum()
        return x, loss


class Half(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        result, loss = self.net(x, y)
        return result, 0.5 * loss


torch.manual_seed(0)
loader = torch.utils.data.DataLoader(
    TensorDataset(torch.randn(32, 4), torch.randn(32, 3)), 8, drop_last=True
)
model = Net()
half = Half(model)
training: torch.nn.Module = half
optimizer = torch.optim.SGD(half.parameters(), lr=0.01)
for x, y in loader:
    optimizer.zero_grad()
    _, loss = training(x, y)
    loss.backward()
    optimizer.step()
    print(loss.item())
inference = model
for x, y in loader:
    with torch.no_grad():
        outputs, loss = inference(x, y)
    print(outputs.sum().item(), loss.item())
