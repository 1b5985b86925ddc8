"""Marks of losses, and annotations."""

from poptorch import DataLoader, Options, inferenceModel, trainingModel, identity_loss
import poptorch
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
        x = self.third(self.second(torch.tanh(self.first(x))).unsqueeze(2)).squeeze(2)
        loss = (x - y).square().mean(1)
        loss = identity_loss(loss, reduction="sum")
        return x, loss


class Half(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        result, loss = self.net(x, y)
        return result, identity_loss(0.5 * loss, "none")


torch.manual_seed(0)
options = Options()
options.setExecutionStrategy(poptorch.ShardedExecution())
loader = DataLoader(options, TensorDataset(torch.randn(32, 4), torch.randn(32, 3)), 8)
model = Net()
half = Half(model)
training: poptorch.PoplarExecutor = trainingModel(half, options)
for x, y in loader:
    _, loss = training(x, y)
    print(loss.item())
inference = inferenceModel(model, options)
for x, y in loader:
    outputs, loss = inference(x, y)
    print(outputs.sum().item(), loss.item())
loader.terminate()
