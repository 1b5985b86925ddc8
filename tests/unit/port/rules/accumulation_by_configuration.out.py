"""How many batches are added up is read from the configuration of an object."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        return loss


torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))


class Trainer:
    def __init__(self, config):
        self.config = config
        self.model = nn.Linear(4, 3)
        training_opts = poptorch.Options()
        training_opts.Training.gradientAccumulation(config["train"]["parts"])
        training_opts.outputMode(poptorch.OutputMode.All)
        self.loader = poptorch.DataLoader(training_opts, data, batch_size=4)
        self.optimizer = poptorch.optim.Adam(self.model.parameters(), lr=0.01)
        self.training_model = poptorch.trainingModel(
            ModelWithLoss(self.model), options=training_opts, optimizer=self.optimizer
        )

    def train(self):
        for i, (x, y) in enumerate(self.loader):
            losses = self.training_model(x, y)
            for loss in losses.reshape(-1):
                loss = loss / self.config["train"]["parts"]
                print(loss.item())


Trainer({"train": {"parts": 4}}).train()
