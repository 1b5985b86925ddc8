"""How many rows a batch has is a size, which a program has once; how long a list is is a number."""

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

    def forward(self, x, n, m):
        loss = (self.model(x) - goal[:n]).square().sum() / n * (1 + m)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
goal = torch.randn(8, 3)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
loader = poptorch.DataLoader(opts, TensorDataset(torch.randn(40, 4)), batch_size=8)
count, before = 0, []
for i, (x,) in enumerate(loader):
    rows, updates = len(x), len(before)
    n = len(x)
    m = len(before)
    count += n
    loss = training_model(x, n, torch.as_tensor(m))
    before.append(loss.item())
    print(loss.item(), count)
