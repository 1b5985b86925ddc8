import argparse

import torch
from points import Net, points


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    loader = torch.utils.data.DataLoader(points(), batch_size=16, shuffle=True, drop_last=True)
    model = Net()
    model.train()
    loss_function = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(arguments.epochs):
        for rows, classes in loader:
            optimizer.zero_grad()
            loss = loss_function(model(rows), classes)
            loss.backward()
            optimizer.step()
            print(loss.item())


if __name__ == "__main__":
    main()
