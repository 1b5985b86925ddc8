"""A script that uses names again, and imports where it goes on."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


def detached(value):
    """A result as a program returns it: without gradients."""
    if isinstance(value, (tuple, list)):
        return type(value)(detached(each) for each in value)
    return value.detach() if isinstance(value, torch.Tensor) else value


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.loss = nn.NLLLoss()

    def forward(self, x, labels=None):
        x = self.layer(x).log_softmax(1)
        if self.training:
            return x, self.loss(x, labels)
        return x


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
model = Net()
loader = torch.utils.data.DataLoader(data, batch_size=8, drop_last=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
poptorch_model = model
total = 0
poptorch_model.train()
for x, y in loader:
    optimizer.zero_grad()
    output, loss = poptorch_model(x, y)
    loss.backward()
    optimizer.step()
    output, loss = detached(output), loss.detach()
    total += loss
print(total, output.exp().sum().item())

from itertools import islice

model = model.eval()
poptorch_model = model
for x, y in islice(loader, 2):
    with torch.no_grad():
        output = poptorch_model(x)
    print(output.argmax(1).tolist())
