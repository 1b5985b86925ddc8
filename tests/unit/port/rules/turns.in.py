"""Loops whose turns are written out: a loader, and whether it trains, in each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((4,), (index % 7) / 7), index % 3


def run_epoch(model, loader, criterion, optimizer, phase):
    is_train = phase == "train"
    model.train(is_train)
    total = 0.0
    with torch.set_grad_enabled(is_train):
        for x, y in loader:
            scores = model(x)  # ABP303 modified, ABP502 modified
            loss = criterion(scores, y)
            if is_train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * x.size(0)
    return total


def fit(model, loaders, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for phase, loader in loaders.items():
            print(epoch, phase, run_epoch(model, loader, criterion, optimizer, phase))


def fit_in_turns(model, train_loader, val_loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for phase, loader in (("train", train_loader), ("val", val_loader)):
            model.train(phase == "train")
            right = 0
            for x, y in loader:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    scores = model(x)  # ABP303 modified, ABP502 modified
                    loss = criterion(scores, y)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                right += (scores.argmax(1) == y).sum().item()
            print(epoch, phase, loss.item(), right)


def fit_as_told(model, training, rest, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for is_training, loader in zip([True, False], [training, rest]):
        train = is_training
        for x, y in loader:
            with torch.set_grad_enabled(train):
                loss = criterion(model(x), y)  # ABP303 modified, ABP502 modified
            if train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(is_training, loss.item())


def main():
    torch.manual_seed(0)
    criterion = nn.CrossEntropyLoss()
    loaders = {
        "train": DataLoader(Table(32), batch_size=8),  # ABP201 modified
        "val": DataLoader(Table(20), batch_size=8),  # ABP202 match
    }
    first, second, third = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
    fit(first, loaders, criterion)
    train_loader = DataLoader(Table(36), batch_size=8, drop_last=True)
    val_loader = DataLoader(Table(21), batch_size=4)
    fit_in_turns(second, train_loader, val_loader, criterion)
    fit_as_told(third, DataLoader(Table(16), batch_size=8), val_loader, criterion)
    for name, loader in [("val", val_loader), ("rest", DataLoader(Table(9), batch_size=2))]:
        with torch.no_grad():
            right = sum((first(x).argmax(1) == y).sum().item() for x, y in loader)
        print(name, right)


main()
