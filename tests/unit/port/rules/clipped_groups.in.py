"""Groups of parameters in a list that has a name, and a limit of all gradients."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
no_decay = ["bias", "1.weight"]
groups = [
    {
        "params": [p for n, p in model.named_parameters() if not any(d in n for d in no_decay)],
        "weight_decay": 0.1,
    },
    {
        "params": [p for n, p in model.named_parameters() if any(d in n for d in no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = torch.optim.AdamW(groups, lr=0.01)  # ABP431 modified
for step in range(6):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # ABP432 manual
    optimizer.step()
    print(loss.item())
