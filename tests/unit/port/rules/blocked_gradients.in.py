"""Gradients that are used in another way than for one update."""

import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 3, requires_grad=True)
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)  # ABP604 blocked
    optimizer.zero_grad()
    loss = out.square().mean() + (slope.norm() - 1) ** 2
    loss.backward(retain_graph=True)  # ABP399 blocked
    other = out.abs().mean()
    other.backward()  # ABP399 blocked
    optimizer.step()
