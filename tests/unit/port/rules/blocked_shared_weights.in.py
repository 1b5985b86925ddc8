"""Several processes update the same weights without waiting for each other."""

import torch
import torch.multiprocessing as mp


def train(rank, model):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(8, 3)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    model = torch.nn.Linear(3, 1)
    model.share_memory()  # ABP606 blocked
    processes = [mp.Process(target=train, args=(rank, model)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
