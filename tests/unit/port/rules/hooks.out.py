"""Hooks on gradients: some are part of a program, others are refused when it is made."""

import poptorch
import torch

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        loss = self.model(x).square().mean()
        return poptorch.identity_loss(loss, reduction="none")


model = torch.nn.Linear(3, 1)
model.weight.register_hook(lambda grad: grad * 2)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for step in range(3):
    x = torch.randn(8, 3)
    loss = training_model(x)
    print(loss.item())
