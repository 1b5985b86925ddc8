"""Functions are given model, optimizer and loader; the criterion is made where it is used."""

import poptorch
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        scores = self.model(x)
        loss = self.criterion(scores, y)
        return poptorch.identity_loss(loss, reduction="none")


def train(model, loader, optimizer, device, training_model):
    criterion = nn.CrossEntropyLoss()
    model.train()
    total = 0.0
    for x, y in loader:
        loss = training_model(x, y)
        total += loss.item()  # a sum of numbers of the host
    return total / len(loader)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
    loader = poptorch.DataLoader(opts, data, batch_size=8, shuffle=True)
    model = nn.Linear(4, 3)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model, nn.CrossEntropyLoss()), options=opts, optimizer=optimizer
    )
    for epoch in range(2):
        print(epoch, train(model, loader, optimizer, device, training_model=training_model))


if __name__ == "__main__":
    main()
