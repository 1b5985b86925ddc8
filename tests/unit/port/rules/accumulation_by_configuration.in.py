"""How many batches are added up is read from the configuration of an object."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))


class Trainer:
    def __init__(self, config):
        self.config = config
        self.model = nn.Linear(4, 3)
        self.loader = DataLoader(data, batch_size=4)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def train(self):
        for i, (x, y) in enumerate(self.loader):
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss = loss / self.config["train"]["parts"]
            loss.backward()  # ABP311 modified
            if (i + 1) % self.config["train"]["parts"] == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            print(loss.item())


Trainer({"train": {"parts": 4}}).train()
