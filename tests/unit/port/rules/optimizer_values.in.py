"""Beside its rate, an optimizer gets other values while it trains."""

import torch

x = torch.randn(8, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
for epoch in range(4):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    if epoch == 1:
        for group in optimizer.param_groups:  # ABP412 modified
            group["betas"] = (0.8, 0.99)
            group["eps"] = 1e-4
            group["weight_decay"] *= 2
    print(loss.item())
