"""Mixed precision: autocast around the forward pass, and a scaler around the update."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
use_amp = torch.cuda.is_available()
device = torch.device("cuda" if use_amp else "cpu")
loader = DataLoader(TensorDataset(torch.randn(160, 4), torch.randn(160, 3)), batch_size=8)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
criterion = nn.MSELoss()
scaler = GradScaler("cuda", enabled=use_amp)  # ABP422 match

for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device)
    optimizer.zero_grad(set_to_none=True)
    # Half where that is enough.
    with autocast(device_type=device.type, enabled=use_amp):  # ABP421 modified
        out = model(x)
        loss = criterion(out, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # ABP422 modified
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # ABP431 modified
    scaler.step(optimizer)
    scaler.update()  # ABP422 modified
    print(loss.item())

model.eval()
with torch.no_grad(), autocast(device_type=device.type, enabled=use_amp):  # ABP421 modified
    print(model(x).sum().item())
