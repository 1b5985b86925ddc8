"""Gradients of a constant number of batches are accumulated."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PARTS = 4


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    return parser.parse_args()


def make_loader(args):
    data = TensorDataset(torch.randn(160, 4), torch.randint(0, 3, (160,)))
    return DataLoader(data, batch_size=args.batch_size, drop_last=True)


def train(model, loader, optimizer):
    total = 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / PARTS
        loss.backward()
        if (i + 1) % PARTS == 0:
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item() * PARTS
        print(i, loss.item())
    return total


def main():
    args = parse()
    torch.manual_seed(0)
    loader = make_loader(args)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        print(train(model, loader, optimizer))


if __name__ == "__main__":
    main()
