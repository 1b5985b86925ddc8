"""Functions are given model, optimizer and loader; the criterion is made where it is used."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, optimizer, device):
    criterion = nn.CrossEntropyLoss()
    model.train()
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)  # ABP101 modified
        optimizer.zero_grad()  # ABP302 modified
        scores = model(x)  # ABP303 modified
        loss = criterion(scores, y)  # ABP303 modified
        loss.backward()  # ABP302 modified
        optimizer.step()  # ABP302 modified
        total += loss.item()  # a sum of numbers of the host
    return total / len(loader)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # ABP104 match
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)  # ABP201 modified
    model = nn.Linear(4, 3).to(device)  # ABP101 modified
    optimizer = optim.Adam(model.parameters(), lr=0.01)  # ABP301 modified, ABP401 modified
    for epoch in range(2):
        print(epoch, train(model, loader, optimizer, device))


if __name__ == "__main__":
    main()
