"""Hooks on gradients: some are part of a program, others are refused when it is made."""

import torch

model = torch.nn.Linear(3, 1)
model.weight.register_hook(lambda grad: grad * 2)  # ABP608 manual
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 3)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
