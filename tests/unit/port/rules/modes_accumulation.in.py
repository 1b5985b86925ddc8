"""A switch of compute modes, and gradients of two batches for an update."""

import enum

import torch


class Mode(enum.Enum):  # ABP901 modified
    CPU = 0
    GPU = 1


MODE = Mode.CPU


def main():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 3))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model = torch.nn.Linear(4, 3)
    if MODE == Mode.GPU:  # ABP906 match
        model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y) / 2
        loss.backward()  # ABP311 modified
        if (index + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        print(loss.item())


main()
