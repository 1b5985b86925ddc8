"""The optimizer is chosen in branches, and gradients are limited before it updates."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="adam")
parser.add_argument("--clip", type=float, default=0.05)
args = parser.parse_args([])

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # ABP401 modified
elif args.optimizer == "adam":
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # ABP401 modified
else:
    raise ValueError(args.optimizer)
criterion = nn.CrossEntropyLoss()
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
data = TensorDataset(torch.randn(160, 4), torch.randint(0, 3, (160,)))
loader = DataLoader(data, batch_size=8, shuffle=True)

for x, y in loader:
    out = model(x)
    loss = criterion(out, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # ABP431 modified
    optimizer.step()
    scheduler.step()  # ABP411 modified
    print(loss.item(), (out.argmax(1) == y).sum().item())
