"""A model is called by hand with batches of several sizes, and loaders of one function have others."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
loader = DataLoader(data, batch_size=8)
val_loader = DataLoader(data, batch_size=12)
test_loader = DataLoader(data, batch_size=5)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
held_out = torch.randn(6, 4)


def classify(net, rows):
    return net(rows).argmax(1).tolist()  # ABP505 match


for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, loss.item(), model(held_out).sum().item())
        print([criterion(model(x), y).item() for x, y in val_loader])  # ABP502 modified
        print([criterion(model(x), y).item() for x, y in test_loader])  # ABP502 modified

with torch.no_grad():
    one = model(torch.ones(1, 4))  # ABP502 modified
    several = model(torch.ones(5, 4))  # ABP502 modified
    print(one.sum().item(), several.sum().item(), model(x).sum().item())  # ABP502 modified
    for count in (1, 2, 3):
        print(model(torch.ones(count, 4)).mean().item())  # ABP505 match
    path = torch.ones(1, 4)
    for _ in range(3):
        path = torch.cat([path, model(path)[:, [0, 1, 2, 0]]])  # ABP505 match
    print(path.sum().item(), classify(model, path), classify(model, held_out[:2]))
