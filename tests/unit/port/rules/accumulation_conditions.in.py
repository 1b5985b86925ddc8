"""Ways to say that an update is made after four batches, of an epoch that has sixteen."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
PARTS, ROWS = 4, 8
data = TensorDataset(torch.randn(16 * ROWS, 4), torch.randint(0, 3, (16 * ROWS,)))
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loader = DataLoader(data, batch_size=ROWS)


def train(model, loader, optimizer, parts=2):
    total = 0.0
    for i, (x, y) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(x), y) / parts
        loss.backward()  # ABP311 modified
        if not i % parts or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item() * parts
    print(i, loss.item())
    return total / len(loader)  # ABP311 modified


for epoch in range(2):
    print(train(model, loader, optimizer, parts=PARTS))

second = nn.Linear(4, 3)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.5)
second_loader = DataLoader(data, batch_size=ROWS, drop_last=True)
print(len(second_loader))  # ABP311 modified
for epoch in range(2):
    for i, (x, y) in enumerate(second_loader):
        loss = nn.functional.cross_entropy(second(x), y)
        loss.backward()
        is_last = i == len(second_loader) - 1  # ABP311 modified
        if is_last or i % PARTS == PARTS - 1:
            second_optimizer.step()
            second_optimizer.zero_grad()
    if len(second_loader) % PARTS != 0:
        second_optimizer.step()
        second_optimizer.zero_grad()
    print(loss.item())
