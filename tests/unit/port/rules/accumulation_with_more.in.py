"""What else is done once per update: clipping, a scheduler, a counter, what is printed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)  # ABP431 modified
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
updates = 0
optimizer.zero_grad()
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / 4
    loss.backward()  # ABP311 modified
    if (i + 1) % 4 == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # ABP431 modified
        optimizer.step()
        scheduler.step()  # ABP411 modified
        optimizer.zero_grad()
        updates += 1
        print(updates, scheduler.get_last_lr())
