"""The model asks for its mode itself: dropout of a function, in training alone."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x):
        return F.dropout(self.inner(x), 0.0, training=self.training) * (1 + self.training)


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
loader = DataLoader(data, batch_size=8)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            print(F.mse_loss(model(x), y).item())
