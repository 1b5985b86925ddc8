"""Training goes on from a checkpoint: weights, averages of batch norm and state of the optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 3))
loader = DataLoader(data, batch_size=8)  # ABP201 modified
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
criterion = nn.MSELoss()


def train():
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())


def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            print(criterion(model(x), y).item())


train()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
train()
evaluate()
state = torch.load("last.pt")
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
evaluate()
train()
evaluate()
