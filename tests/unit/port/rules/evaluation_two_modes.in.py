"""The model is called in training mode and in the other: dropout is on in one of them."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.inner(x))


def score(model, data):
    with torch.no_grad():
        return F.mse_loss(model(data[:][0]), data[:][1]).item()  # ABP504 manual


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
    torch.manual_seed(epoch)
    print("with dropout", score(model, data), score(model, data))
    model.eval()
    print("without", score(model, data), score(model, data))
