"""Groups of an optimizer of which the text does not say whether they have all parameters."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
groups = []
for number, layer in enumerate(reversed([each for each in model if isinstance(each, nn.Linear)])):
    groups.append({"params": layer.parameters(), "lr": 0.1 * 0.5**number})
optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
kept = []
for p in model.parameters():
    if p.ndim > 1:
        kept.append(p)
second = torch.optim.SGD(kept, lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # ABP432 manual
    optimizer.step()
    print(loss.item())
print(*(each.norm().item() for each in model.parameters()))
