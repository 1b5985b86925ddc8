import copy
import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = (self.model(x) - y).pow(2).mean()
        return poptorch.identity_loss(loss, reduction="none")


class Average:
    def __init__(self, model):
        self.module = copy.deepcopy(model)

    def update(self, model):
        for mine, other in zip(self.module.parameters(), model.parameters()):
            mine.data.lerp_(other.data, 0.1)


def validate(net, loader):
    net.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += (net(x) - y).abs().sum().item()
    return total


torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = poptorch.DataLoader(opts, data, batch_size=16)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
average = Average(model)
smooth = copy.deepcopy(model)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = training_model(x, y)
        average.update(model)
    print(loss.item(), validate(average.module if epoch else model, loader), validate(smooth, loader))
