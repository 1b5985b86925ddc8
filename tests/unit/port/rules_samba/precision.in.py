"""Mixed precision, a limit of gradients, and tensors that are made or moved on a device."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(2)
x = torch.randn(40, 6)
data = TensorDataset(x, x[:, :3].argmax(1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)  # ABP101 modified
shares = torch.tensor([1.0, 2.0, 0.5], device=device)  # ABP103 modified
scale = torch.linspace(0.5, 2.999, 6, device=device, dtype=torch.bfloat16)  # ABP103 modified
criterion = nn.CrossEntropyLoss(weight=shares).to(device)  # ABP101 modified
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
for epoch in range(3):
    for rows, labels in loader:
        rows, labels = rows.to(device), labels.to(device)  # ABP101 modified
        rows = rows * scale.to(device, torch.int64)  # ABP101 modified
        optimizer.zero_grad()
        with torch.autocast(device.type, enabled=torch.cuda.is_available()):  # ABP421 modified
            scores = model(rows)
            loss = criterion(scores, labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # ABP422 modified
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # ABP431 modified
        scaler.step(optimizer)
        scaler.update()  # ABP422 modified
        print(loss.item(), scores.detach().argmax(1).sum().item())
    print(model(x.to(device)).sum().item())  # ABP101 modified
