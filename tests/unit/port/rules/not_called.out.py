"""A function that evaluates is called by one that nobody calls, which has no inference model."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion, x, y):
        super().__init__()
        self.model = model
        self.criterion = criterion
        self.x = x
        self.y = y

    def forward(self):
        loss = self.criterion(self.model(self.x), self.y)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
rows = torch.randn(5, 4)


def predict(model):
    with torch.no_grad():
        return model(rows).argmax(1)


def serve(model):
    return predict(model).tolist()


def main():
    model = nn.Linear(4, 3)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    training_model = poptorch.trainingModel(
        ModelWithLoss(model, criterion, x, y), options=opts, optimizer=optimizer
    )
    for _ in range(3):
        loss = training_model()
        print(loss.item())
    print(predict(model).tolist())


main()
