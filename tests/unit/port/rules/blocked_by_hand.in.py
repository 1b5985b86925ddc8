"""An update that is written out, without an optimizer."""

import torch

model = torch.nn.Linear(4, 3)
for _ in range(2):
    loss = torch.nn.functional.mse_loss(model(torch.ones(2, 4)), torch.ones(2, 3))
    loss.backward()  # ABP399 blocked
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
    model.zero_grad()
