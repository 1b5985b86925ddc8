"""A script that uses names again, and imports where it goes on."""

import poptorch  # ABP1901 modified
import torch
from torch import nn
from torch.utils.data import TensorDataset


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
opts = poptorch.Options()  # ABP1001 modified
loader = poptorch.DataLoader(opts, data, batch_size=8)  # ABP1301 modified
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)  # ABP1401 modified
poptorch_model = poptorch.trainingModel(model, opts, optimizer)  # ABP1101 modified
total = 0
for x, y in loader:
    output, loss = poptorch_model(x, y)
    total += loss
print(total, output.exp().sum().item())

from itertools import islice

model = model.eval()
poptorch_model = poptorch.inferenceModel(model, options=poptorch.Options())  # ABP1201 modified
for x, y in islice(loader, 2):
    output = poptorch_model(x)
    print(output.argmax(1).tolist())

opts = poptorch.Options().deviceIterations(20).useIpuModel(True)
