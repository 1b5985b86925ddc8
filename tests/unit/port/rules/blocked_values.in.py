"""Functions that a step calls and that read values, and shapes that depend on values."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.out = nn.Linear(8, 1)
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("queue", torch.zeros(64, 8))

    def longest(self, lengths):
        return int(lengths.max())

    def remember(self, keys):
        place = int(self.place)  # ABP605 blocked
        self.queue[place : place + len(keys)] = keys
        self.place[0] = (place + len(keys)) % 64

    def forward(self, x, lengths):
        x = x[:, : self.longest(lengths)]
        packed = pack_padded_sequence(x, lengths, batch_first=True)  # ABP605 blocked
        fixed = pack_padded_sequence(x, [3] * len(x), batch_first=True)  # ABP605 blocked
        _, (hidden, _) = self.lstm(packed)
        _, (other, _) = self.lstm(fixed)
        self.remember(hidden[-1].detach())
        return {"main": self.out(hidden[-1]), "other": self.out(other[-1])}


def largest(scores, by="max", scale=1):
    if by == "max" and scale > 1 and torch.is_tensor(scores):
        return scores.max()
    return scores.mean() if scores.mean() > 0 else scores.max()


def losses_of(out, goal, first=2):
    terms = {}
    for key, value in out.items():
        if key == "main":
            terms[key] = (value - goal).square().mean() + largest(value)
    for i, value in enumerate(out.values()):
        if i < first:
            terms[i] = value.abs().mean()
    for weight, (i, term) in zip((1.0, 0.5, 0.0), terms.items()):
        if weight > 0:
            terms[i] = weight * term
    total, small = sum(terms.values()), first
    if small > 3:
        total = total / small
    return total, {key: term.item() for key, term in terms.items()}


def logged(numbers):
    print({key: float(number) for key, number in numbers.items()})


model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 5, 4), torch.full((32,), 5), torch.randn(32, 1))
loader = DataLoader(data, batch_size=8)
for epoch in range(2):
    length = epoch + 3
    for x, lengths, goal in loader:
        optimizer.zero_grad()
        out = model(x[:, :length], lengths)  # ABP605 blocked
        loss, terms = losses_of(out, goal)
        loss.backward()
        optimizer.step()
        logged(terms)
