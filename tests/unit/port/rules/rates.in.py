"""Learning rates that are written by hand, and checkpoints of weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 3)), batch_size=8)
model = nn.Linear(4, 3)
torch.save(model.state_dict(), "start.pt")
model.load_state_dict(torch.load("start.pt"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def slow_down(optimizer, epoch):
    for group in optimizer.param_groups:  # ABP412 modified
        group["lr"] = 0.5 * 0.1**epoch


for epoch in range(3):
    slow_down(optimizer, epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item(), optimizer.param_groups[0]["lr"])
    optimizer.param_groups[0]["lr"] *= 2  # ABP412 modified
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "end.pt")
    model.load_state_dict(torch.load("end.pt")["model"])  # ABP706 modified
