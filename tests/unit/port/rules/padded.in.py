"""A function that puts rows into a batch, and pads them to the longest of that batch."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def together(rows):
    words, labels = zip(*rows)
    return pad_sequence(words, batch_first=True), torch.stack(labels)  # ABP206 manual


torch.manual_seed(0)
rows = [(torch.randint(0, 9, (6,)), torch.rand(1)) for _ in range(32)]
loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=together)
model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for words, labels in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(words), labels)
    loss.backward()
    optimizer.step()
    print(loss.item())
