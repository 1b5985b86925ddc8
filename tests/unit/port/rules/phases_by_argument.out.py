"""A function trains where it is given an optimizer, and evaluates where it is given none."""

import poptorch
import torch
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, targets):
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        return loss


x = torch.randn(90, 4)
y = x.sum(1, keepdim=True)
train_loader = poptorch.DataLoader(opts, TensorDataset(x[:64], y[:64]), batch_size=8)
val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)


def run(model, loader, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total = 0.0
    with torch.set_grad_enabled(training):
        for inputs, targets in loader:
            if training:
                loss = training_model(inputs, targets)
            else:
                loss = torch.nn.functional.mse_loss((inference_model if len(inputs) == loader.batch_size else model)(inputs), targets)
            total += loss.item() * len(inputs)
    return total


model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
inference_model = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(3):
    print(run(model, train_loader, optimizer), run(model, val_loader))
