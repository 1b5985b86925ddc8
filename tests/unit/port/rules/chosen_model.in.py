"""A branch chooses one of two models, which are updated by hand, and weights that were saved."""

import torch
from torch import nn

torch.manual_seed(0)
wide = True
if wide:
    model = nn.Linear(4, 3)
else:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))
criterion = nn.MSELoss()


def train(x, y):
    model.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # ABP431 modified
    for p in model.parameters():  # ABP403 modified
        p.data.add_(p.grad, alpha=-0.1)
    return loss.item()


def load(state):
    model.load_state_dict(state)  # ABP706 modified


first = {name: value.clone() for name, value in model.state_dict().items()}
x, y = torch.randn(8, 4), torch.randn(8, 3)
print([train(x, y) for _ in range(4)])
load(first)
print([train(x, y) for _ in range(4)])
