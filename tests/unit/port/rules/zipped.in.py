import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

loader2 = DataLoader(TensorDataset(x.flip(0), y.flip(0)), batch_size=8)
for epoch in range(3):
    for (xa, ya), (xb, yb) in zip(loader, loader2):
        optimizer.zero_grad()
        loss = criterion(model(xa), ya) + 0.5 * criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        print(loss.item())
