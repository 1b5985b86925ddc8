"""State of an optimizer that stays torch's own."""

import torch

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)  # ABP402 match
for step in range(20):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), torch.ones(8, 3))
    loss.backward()
    optimizer.step()
torch.save(optimizer.state_dict(), "optimizer.pt")  # ABP702 manual
