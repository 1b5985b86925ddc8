"""Tensors are made on a device and moved there, some of them with another type."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # ABP104 match
shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64, device=device)  # ABP103 modified
steps = torch.linspace(0.1, 0.8, 8, device=device).unsqueeze(1)  # ABP103 modified
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(device)  # ABP101 modified
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(12):
    x = torch.randint(0, 5, (8, 4)).flip(1).to(device, torch.float32)  # ABP101 modified
    y = torch.randn(8, 3).to(device=device, dtype=torch.float16)  # ABP101 modified
    noise = 0.1 * torch.randn(8, 3).to(device, non_blocking=True)  # ABP101 modified
    optimizer.zero_grad()
    error = shares * (model(x) + noise - y) * steps.to(device)  # ABP101 modified
    loss = error.square().mean().float()
    loss.backward()
    optimizer.step()
    print(loss.item(), model[2].bias.detach().cpu().tolist())  # ABP101 modified
torch.save(model.state_dict(), "devices.pt")
weights = torch.load("devices.pt", map_location=device, weights_only=True)  # ABP102 modified
print(weights["0.bias"].sum().item())
