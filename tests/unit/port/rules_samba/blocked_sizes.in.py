"""How many rows a batch has is no tensor, and a session takes nothing else."""

import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
goal = torch.randn(8, 2)
for x in torch.randn(5, 8, 4):
    rows = len(x)
    optimizer.zero_grad()
    loss = (model(x) - goal[:rows]).square().mean()  # ABP2399 blocked
    loss.backward()
    optimizer.step()
