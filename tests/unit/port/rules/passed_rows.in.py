"""Batches are dictionaries with text in them, and functions and models are given whole ones."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = torch.full((4,), index / 32)
        return {"name": f"picture {index}", "image": x, "label": torch.tensor(index % 3)}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, batch):
        return self.head(torch.tanh(self.body(batch["image"])))

    def compute(self, batch):
        return self.criterion(self(batch), batch["label"])


def with_penalty(model, rows, weight=0.01):
    scores = model(rows)
    return nn.functional.cross_entropy(scores, rows["label"]) + weight * scores.pow(2).mean()


def evaluate(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for batch in loader:
            scores = model(batch)
            total += nn.functional.cross_entropy(scores, batch["label"]).item()
    return total


def main():
    torch.manual_seed(0)
    first, second = Tagger(), Tagger()
    loader = DataLoader(Pictures(32), batch_size=8)
    test_loader = DataLoader(Pictures(12), batch_size=8)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.5)
    other = torch.optim.SGD(second.parameters(), lr=0.5)
    for epoch in range(2):
        first.train()
        for batch in loader:
            optimizer.zero_grad()
            loss = first.compute(batch)
            loss.backward()
            optimizer.step()
        print(epoch, batch["name"][0], loss.item(), evaluate(first, test_loader))
    for epoch in range(2):
        for batch in loader:
            other.zero_grad()
            loss = with_penalty(second, rows=batch)
            loss.backward()
            other.step()
        print(epoch, batch["name"][0], loss.item())


main()
