"""Logistic regression with options, in functions."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset


class LogReg(torch.nn.Module):
    """One dense layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, images):
        return self.layer(images.flatten(1))


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args(argv)


def test(model, loader):
    hits = [model(x).argmax(1).eq(y) for x, y in loader]  # ABP2502 match
    return torch.cat(hits).float().mean().item()


def main():
    args = parse_arguments([])
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # ABP104 match
    x = torch.randn(64, 4, 4)
    data = TensorDataset(x, x.flatten(1)[:, :4].argmax(1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = LogReg().to(device)  # ABP101 modified
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)  # ABP2401 modified, ABP2301 modified
    for epoch in range(args.epochs):
        for images, labels in loader:  # ABP2501 modified
            images, labels = images.to(device), labels.to(device)  # ABP101 modified
            optimizer.zero_grad()  # ABP2302 modified
            scores = model(images)  # ABP303 modified
            loss = criterion(scores, labels)  # ABP303 modified
            loss.backward()  # ABP2302 modified
            optimizer.step()  # ABP2302 modified
            print(loss.item(), scores.argmax(1).tolist())
        print(epoch, test(model, DataLoader(data, batch_size=16)))


if __name__ == "__main__":
    main()
