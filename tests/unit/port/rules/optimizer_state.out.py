"""State of an optimizer that stays torch's own."""

import poptorch
import torch

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        loss = torch.nn.functional.mse_loss(self.model(x), torch.ones(8, 3))
        return poptorch.identity_loss(loss, reduction="none")


model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for step in range(20):
    x = torch.randn(8, 4)
    loss = training_model(x)
torch.save(optimizer.state_dict(), "optimizer.pt")
