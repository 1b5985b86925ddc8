"""Parameters that a loop sorts into groups, and a limit of all gradients."""

import torch
from torch import nn


def groups_of(model, decay):
    some, others = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.ndim < 2 or name.endswith(".bias"):
            others.append(p)
        else:
            some.append(p)
    return [{"params": some, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def run(model, optimizer):
    for step in range(8):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        print(loss.item())
    print(*(each.norm().item() for each in model.parameters()))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(groups_of(model, 0.1), lr=0.05)  # ABP431 modified
    run(model, optimizer)


main()
