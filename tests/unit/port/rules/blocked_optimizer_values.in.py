"""Values of an optimizer that a program has as constants change while it trains."""

import torch

x = torch.randn(8, 4)
limit = 1.0
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
other = torch.nn.Linear(4, 1)
optimizer_of_other = torch.optim.SGD(other.parameters(), lr=0.01)
late = 0.5
for epoch in range(4):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)  # ABP432 blocked
    optimizer.step()
    limit *= 0.5
    if epoch == 1:
        optimizer.param_groups[0]["momentum"] = 0.9  # ABP414 manual
    print(loss.item())
for _ in range(4):
    optimizer_of_other.zero_grad()
    loss = other(x).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), late)  # ABP432 blocked
    optimizer_of_other.step()
