"""An optimizer whose class is not written."""

import torch
from torch import nn

x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
which = getattr(torch.optim, "SGD")
other = nn.Linear(4, 3)
other_optimizer = which(other.parameters(), lr=0.1)
for _ in range(3):
    loss = nn.functional.cross_entropy(other(x), y)
    loss.backward()
    other_optimizer.step()  # ABP399 blocked
    other_optimizer.zero_grad()
