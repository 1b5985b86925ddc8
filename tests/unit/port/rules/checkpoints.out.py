"""A whole model is saved and read again."""

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
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for step in range(20):
    x = torch.randn(8, 4)
    loss = training_model(x)
    print(loss.item())
torch.save(model, "model.pt")
again = torch.load("model.pt", weights_only=False)
print(type(again).__name__, again.weight.double().sum().item(), again(torch.ones(2, 4)).tolist())
