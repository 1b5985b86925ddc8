"""Gradients of several batches are added up in a loop inside of the one over updates."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
grad_clip = 0.1
loader = DataLoader(TensorDataset(torch.randn(48, 4), torch.randn(48, 3)), batch_size=8)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batches, parts = iter(loader), 3
for update in range(2):
    total = 0.0
    for _ in range(parts):  # ABP316 modified
        x, y = next(batches)
        out = model(x)
        loss = nn.functional.mse_loss(out, y)
        loss = loss / parts
        loss.backward()
        total += loss.item()  # ABP316 modified
        print(total)
    if grad_clip != 0.0:
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(update, loss.item() * parts, total)


def train(data, second_model, second):
    x, y = data[:8], data[8:16]
    for update in range(3):
        second.zero_grad()  # ABP302 modified
        for i in range(4):
            (second_model(x).sub(y).square().mean() / 4).backward()
            x, y = data[8 * i : 8 * i + 8], data[: 8]
        second.step()
        print(sum(p.sum().item() for p in second_model.parameters()))


def main():
    second_model = nn.Linear(4, 4)
    second = torch.optim.AdamW(second_model.parameters(), lr=0.1)
    train(torch.randn(48, 4), second_model, second)


main()
