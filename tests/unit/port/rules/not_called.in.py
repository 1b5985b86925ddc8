"""A function that evaluates is called by one that nobody calls, which has no inference model."""

import torch
from torch import nn


torch.manual_seed(0)
rows = torch.randn(5, 4)


def predict(model):
    with torch.no_grad():
        return model(rows).argmax(1)


def serve(model):
    return predict(model).tolist()


def main():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    for _ in range(3):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())
    print(predict(model).tolist())


main()
